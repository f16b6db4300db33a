"""Training a classifier at a temperature: `train(Options(temperature=10.0), "runs/x")`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
