"""The tensors that a policy learns."""

from collections.abc import Iterator

from torch import Tensor, nn


def learned_by(policy: object) -> list[Tensor]:
    """The tensors within a policy's attributes that want a gradient, each once."""
    return list({id(tensor): tensor for tensor in _tensors_in(policy)}.values())


def _tensors_in(thing: object) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        if thing.requires_grad:
            yield thing
    elif isinstance(thing, nn.Module):
        yield from (parameter for parameter in thing.parameters() if parameter.requires_grad)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _tensors_in(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _tensors_in(value)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from _tensors_in(vars(thing))
