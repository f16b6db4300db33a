"""The tensors that a policy learns."""

from collections import deque
from collections.abc import Iterator, Mapping, Set

from torch import Tensor, nn


def learned_by(policy: object) -> list[Tensor]:
    """The tensors within a policy's attributes that want a gradient, each once."""
    return list({id(tensor): tensor for tensor in _tensors_in(policy, set())}.values())


def _tensors_in(thing: object, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        if thing.requires_grad:
            yield thing
        return
    if id(thing) in seen or isinstance(thing, type):
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        yield from (parameter for parameter in thing.parameters() if parameter.requires_grad)
    inside: list[object] = []
    if isinstance(thing, Mapping):
        inside = list(thing.values())
    elif isinstance(thing, list | tuple | Set | deque):
        inside = list(thing)
    else:
        inside = list(getattr(thing, "__dict__", {}).values())
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            inside += [getattr(thing, slot, None) for slot in ((slots,) if isinstance(slots, str) else slots)]
    for each in inside:
        yield from _tensors_in(each, seen)
