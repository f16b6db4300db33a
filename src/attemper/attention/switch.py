"""Models of transformers set to a policy, and back."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from torch import nn

from ..errors import ArgumentError
from ..knob.needs import check_layers, check_policy
from ..knob.policies import Policy
from .backend import NAME, Own, make_known
from .layers import attention_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound=nn.Module)
Before = list[tuple[Any, str | None]]

ELSEWHERE = "(for other models there is `with at.tempering(policy)`)"
_tempered: WeakSet[nn.Module] = WeakSet()


def temper(model: Model, policy: Policy) -> Model:
    """Set every attention of a transformers model to `policy`, in place, whatever attention it ran before.

    The model keeps its policy inside `with at.tempering(...)`, in copies of it and until `untemper`; what is saved of
    it does not change. Tempered again it takes the new policy.
    """
    check_policy(policy)
    configs, aside = _ready(model, policy)
    if aside:
        warnings.warn(f"not tempered, for want of an AttentionInterface: {', '.join(aside)}", stacklevel=2)
    known = _originals(model)
    before = [(c, known.get(id(c), NAME) if _name(c) == NAME else _name(c)) for c in configs]
    model.__dict__["_attemper_before"] = before
    _set(model, policy)
    _tempered.add(model)
    return model


def untemper(model: Model) -> Model:
    """Give a tempered model the attention it had."""
    known, inside = _originals(model), set(model.modules())
    # two models may have been built of one configuration
    kept = {id(c) for other in _tempered if other not in inside for c in _configs(other) if _in_use(other)}
    for config in _configs(model):
        if _name(config) == NAME and id(config) in known and id(config) not in kept:
            config._attn_implementation_internal = known[id(config)]
    for module in inside:
        module.__dict__.pop("_attemper", None)
        module.__dict__.pop("_attemper_before", None)
    _tempered.difference_update(inside)
    return model


@contextmanager
def switched(model: nn.Module, policy: Policy | None) -> Iterator[None]:
    """As `temper` for the time being, or with None under the policy in force; afterwards everything is as it was."""
    before = [(c, _name(c)) for c in _ready(model, policy)[0]]
    owned = {module: module.__dict__.get("_attemper") for module in model.modules()}
    try:
        _set(model, policy)
        yield
    finally:
        for config, name in before:
            config._attn_implementation_internal = name
        for module, own in owned.items():
            module.__dict__.pop("_attemper", None)
            if own is not None:
                module.__dict__["_attemper"] = own


def runs_ours(model: nn.Module) -> bool:
    """Whether it was loaded or set with attn_implementation="attemper"."""
    return any(_name(config) == NAME for config in _configs(model))


def pretrained(model: nn.Module) -> "list[PreTrainedModel]":
    """The models of transformers in it, the whole before its parts."""
    from transformers import PreTrainedModel

    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def _set(model: nn.Module, policy: Policy | None) -> None:
    for config in _configs(model):
        config._attn_implementation_internal = NAME
    layers = {module: number for number, module in enumerate(attention_modules(model).values())}
    # on every module: whichever one calls finds it, and a call from none of `layers` has no number
    for module in model.modules():
        module.__dict__["_attemper"] = Own(policy, layers.get(module))


def _ready(model: nn.Module, policy: Policy | None) -> tuple[list[Any], list[str]]:
    """The configurations of a model that can be switched, and which of its attention modules cannot."""
    make_known()
    if policy is not None:
        check_policy(policy)
    if not isinstance(model, nn.Module) or not (parts := pretrained(model)):
        raise ArgumentError("model", type(model).__name__, f"a model of transformers {ELSEWHERE}")
    for part in parts:
        if not part._can_set_attn_implementation():
            accepted = f"a model whose attention goes through transformers' AttentionInterface {ELSEWHERE}"
            raise ArgumentError("model", type(part).__name__, accepted)
    modules = attention_modules(model)
    check_layers(policy, len(modules))
    aside = [name for name, module in modules.items() if not _calls_interface(type(module))]
    if len(aside) == len(modules) and not any(_calls_interface(type(module)) for module in model.modules()):
        accepted = f"a model with attention that goes through transformers' AttentionInterface {ELSEWHERE}"
        raise ArgumentError("model", type(model).__name__, accepted)
    configs = _configs(model)
    if any(getattr(config, "output_attentions", False) for config in configs):
        # transformers would neither give them nor save such a configuration
        accepted = "a model with config.output_attentions = False (at.watching measures the rows)"
        raise ArgumentError("model", "output_attentions = True", accepted)
    return configs, aside


def _calls_interface(kind: type[nn.Module]) -> bool:
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration in the model, once, with those inside it."""
    from transformers import PreTrainedConfig

    found: dict[int, Any] = {}
    waiting = [module.__dict__["config"] for module in model.modules() if "config" in module.__dict__]
    while waiting:
        config = waiting.pop(0)
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(found.values())


def _name(config: Any) -> str | None:
    name: str | None = config._attn_implementation_internal
    return name


def _originals(model: nn.Module) -> dict[int, str | None]:
    """What each configuration said before it was switched, as far as a living model knows."""
    memories: list[Before] = [m.__dict__.get("_attemper_before", []) for m in {*_tempered, *model.modules()}]
    return {id(config): name for memory in memories for config, name in memory}


def _in_use(model: nn.Module) -> bool:
    return "_attemper_before" in model.__dict__
