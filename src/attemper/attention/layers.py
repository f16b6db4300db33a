"""Which modules of a model are its attention, in the order in which policies and tables number them."""

import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager

from torch import nn


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Name -> module, in `named_modules` order: the innermost ones whose class says that it is attention.

    >>> list(attention_modules(nn.TransformerEncoderLayer(8, 2)))
    ['self_attn']
    """
    found = {name: module for name, module in model.named_modules() if _says_so(module)}
    return {
        name: module
        for name, module in found.items()
        if not any(inner is not module and _says_so(inner) for inner in module.modules())
    }


class Running(threading.local):
    """The modules of a model that run in this thread, the innermost last."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.ran = False

    def innermost(self, among: Container[nn.Module]) -> nn.Module | None:
        return next((module for module in reversed(self.modules) if module in among), None)


@contextmanager
def following(model: nn.Module) -> Iterator[Running]:
    """Hooks keep the list of what runs while the context lasts, and are gone afterwards."""
    running = Running()

    def enter(module: nn.Module, _: object) -> None:
        running.modules.append(module)
        running.ran = True

    def leave(module: nn.Module, _: object, __: object) -> None:
        # it was not entered where a hook of the user's failed first
        if running.modules and running.modules[-1] is module:
            running.modules.pop()

    hooks = []
    try:
        for module in model.modules():
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave, always_call=True))
        yield running
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode while the context lasts; then every module is in its own again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _says_so(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()
