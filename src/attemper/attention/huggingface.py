"""The knob for models of transformers.

`register()` makes `attn_implementation="attemper"` known; `temper(model, policy)` switches a model in place and
`untemper(model)` switches it back; `fold(model, policy)` makes constants part of the weights.
"""

from .backend import register as register
from .fold import fold as fold
from .switch import temper as temper
from .switch import untemper as untemper

__all__ = ["fold", "register", "temper", "untemper"]
