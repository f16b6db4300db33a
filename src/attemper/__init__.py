"""Measures what softmax temperature does inside a neural network, and sets it.

Nothing heavy is imported before a name is used: see __init__.pyi for the names.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
