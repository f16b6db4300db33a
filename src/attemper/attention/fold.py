"""Constant temperatures written into the weights of a model."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, AttemperError
from ..knob.per_head import PerHead
from ..knob.policies import Constant, Policy
from ..knob.rows import HeldLogits, RowStatistics
from . import backend
from .cases import Case
from .layers import attention_modules, evaluating
from .switch import Model, pretrained, switched, untemper

# by its name in the module: what makes the query, and where among its outputs the query stands. The first that is
# there counts: a module that crosses over to another sequence has q_attn beside c_attn.
ALONE, FIRST, BY_HEAD = "alone", "first", "by head"
PROJECTIONS = {
    "q_b_proj": ALONE,
    "q_attn": ALONE,
    "q_proj": ALONE,
    "query": ALONE,
    "q_lin": ALONE,
    "query_proj": ALONE,
    "wq": ALONE,
    "q": ALONE,
    "c_attn": FIRST,
    "qkv_proj": FIRST,
    "Wqkv": FIRST,
    "qkv": FIRST,
    "query_key_value": BY_HEAD,
}
NORMS = ("q_norm", "query_norm", "q_layernorm", "query_layernorm", "q_ln", "norm_q")


class Factor(NamedTuple):
    """A parameter becomes (parameter + offset) * factor - offset."""

    parameter: nn.Parameter
    factor: Tensor
    offset: float = 0.0


@dataclass
class Call:
    """What an attention module was given and gave, and the case that came of it."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    case: Case | None = None
    output: Tensor | None = None


def fold(model: Model, policy: Policy, inputs: Mapping[str, Any] | None = None) -> Model:
    """Multiply constants per head into what makes the query, in place, and give the model back as an ordinary one.

    The policy is an `at.Constant`, or an `at.PerHead` of nothing else. The model ends with the attention it had before
    any `temper`; any server runs it. It is all or nothing: what cannot be exact is refused by name (soft caps, sinks,
    additive biases, a query norm that heads with different constants share, shared or quantised weights), and on small
    random inputs every attention module is compared with the tempered one. `inputs`, the arguments of a call of the
    model, replace those where the model needs others.
    """
    _check_constant(policy)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        with switched(model, policy):
            calls = _run(model, inputs)
        plans = _plans(model, policy, calls)
        saved = [(f.parameter, f.parameter.clone()) for plan in plans for f in plan.factors]
        try:
            for plan in plans:
                for f in plan.factors:
                    wide = (f.parameter.double() + f.offset) * f.factor - f.offset
                    f.parameter.copy_(wide)
            with switched(model, Constant(1.0)):
                for plan in plans:
                    _compare(plan)
        except BaseException:
            for parameter, before in saved:
                parameter.copy_(before)
            raise
    return untemper(model)


@dataclass
class Plan:
    name: str
    module: nn.Module
    call: Call
    case: Case
    betas: Tensor
    factors: list[Factor]


def _check_constant(policy: Policy) -> None:
    parts = [policy]
    if isinstance(policy, PerHead):
        parts = [*policy.policies.values(), *([] if policy.default is None else [policy.default])]
    if not all(type(part) is Constant for part in parts):
        raise ArgumentError("policy", policy, "at.Constant, or at.PerHead of nothing else,")


def _plans(model: nn.Module, policy: Policy, calls: dict[nn.Module, Call]) -> list[Plan]:
    """A plan for each attention module with a temperature; every reason to refuse is found here."""
    plans = []
    names = _names_by_storage(model)
    for layer, (name, module) in enumerate(attention_modules(model).items()):
        call = calls[module]
        if call.case is None or call.output is None:
            if not _names(policy, layer):
                continue
            raise ArgumentError(
                "inputs", f"inputs that do not reach {name}", "a call that reaches every attention module"
            )
        betas = _betas(policy, layer, call.case.heads)
        if bool((betas == 1).all()):
            continue
        _refuse_logits(name, call.case)
        factors = _factors(name, module, betas, call.case.query.shape[-1])
        for f in factors:
            _refuse_weight(model, name, f.parameter, names)
        plans.append(Plan(name, module, call, call.case, betas, factors))
    return plans


def _names(policy: Policy, layer: int) -> bool:
    if not isinstance(policy, PerHead):
        return policy != Constant(1.0)
    return policy.default is not None or any(of == layer for of, _ in policy.policies)


def _betas(policy: Policy, layer: int, heads: int) -> Tensor:
    held = HeldLogits.of(torch.zeros(1, heads, 1, 1, dtype=torch.float64))
    beta = policy.inverse_temperature(RowStatistics(held, layer=layer))
    return torch.as_tensor(beta, dtype=torch.float64).expand(1, heads, 1).reshape(heads)


def _refuse(name: str, came: str, accepted: str) -> AttemperError:
    return ArgumentError("model", f"{came} in {name}", accepted)


def _refuse_logits(name: str, case: Case) -> None:
    """A temperature multiplies these too, and the query cannot."""
    if case.softcap is not None:
        raise _refuse(name, f"a soft cap of {case.softcap}", "attention without a soft cap")
    if case.sinks is not None:
        raise _refuse(name, "a sink", "attention without sinks")
    if case.is_biased:
        raise _refuse(name, "an additive bias", "attention without an additive bias")


def _factors(name: str, module: nn.Module, betas: Tensor, width: int) -> list[Factor]:
    """What to multiply so that head h's query, `width` numbers, is betas[h] times as long."""
    for norm in NORMS:
        inner = getattr(module, norm, None)
        if isinstance(inner, nn.Module) and not isinstance(inner, nn.Identity):
            return _norm_factors(f"{name}.{norm}", inner, betas, width)
    for attribute, place in PROJECTIONS.items():
        projection = getattr(module, attribute, None)
        if isinstance(projection, nn.Module):
            return _projection_factors(f"{name}.{attribute}", projection, place, betas, width)
    accepted = f"attention whose query comes from one of {', '.join(PROJECTIONS)}"
    raise _refuse(name, f"a {type(module).__name__} with none of them", accepted)


def _norm_factors(name: str, norm: nn.Module, betas: Tensor, width: int) -> list[Factor]:
    own = dict(norm.named_parameters())
    if not own or not set(own) <= {"weight", "bias"} or "weight" not in own:
        raise _refuse(name, f"a {type(norm).__name__} without one weight to scale", "a query norm with a weight")
    heads, alike = len(betas), bool((betas == betas[0]).all())
    if own["weight"].numel() == heads * width:
        factor = betas.repeat_interleave(width)
    elif own["weight"].numel() == width and alike:
        factor = betas[0].expand(width)
    elif own["weight"].numel() == width:
        raise _refuse(
            name, "a query norm that heads share", "one constant for all heads of such a layer, or no such norm"
        )
    else:
        raise _refuse(name, f"a weight of shape {tuple(own['weight'].shape)}", f"({width},) or ({heads * width},)")
    offset = _offset(norm, own["weight"])
    return [
        Factor(p, factor.to(p.device).reshape(p.shape), offset if key == "weight" else 0.0) for key, p in own.items()
    ]


def _offset(norm: nn.Module, weight: Tensor) -> float:
    """1 for a norm that multiplies by 1 + weight: at a weight of 0 it lets something through."""
    changed = {key: torch.zeros_like(p) for key, p in norm.named_parameters()}
    probe = torch.linspace(-1, 2, weight.numel(), dtype=weight.dtype, device=weight.device).reshape(1, 1, *weight.shape)
    passed = torch.func.functional_call(norm, changed, (probe,))
    return 1.0 if bool((passed != 0).any()) else 0.0


def _projection_factors(name: str, projection: nn.Module, place: str, betas: Tensor, width: int) -> list[Factor]:
    kind = type(projection).__name__
    conv = kind == "Conv1D" and type(projection).__module__ == "transformers.pytorch_utils"
    if not conv and type(projection) is not nn.Linear:
        raise _refuse(
            name, f"a {type(projection).__module__}.{kind}", "a plain torch.nn.Linear, or transformers' Conv1D,"
        )
    weight, bias = projection.weight, projection.bias
    assert isinstance(weight, nn.Parameter) and (bias is None or isinstance(bias, nn.Parameter))
    made, asked_for = weight.shape[1 if conv else 0], len(betas) * width
    if (place == ALONE and made != asked_for) or (place == BY_HEAD and made != 3 * asked_for) or made < asked_for:
        raise _refuse(name, f"{made} outputs for {len(betas)} heads of {width}", "a known layout of the query")
    factor = torch.ones(made, dtype=torch.float64)
    if place == BY_HEAD:
        factor.view(len(betas), 3, width)[:, 0] = betas[:, None]
    else:
        factor[:asked_for] = betas.repeat_interleave(width)
    factor = factor.to(weight.device)
    factors = [Factor(weight, factor if conv else factor[:, None])]
    return factors if bias is None else [*factors, Factor(bias, factor)]


def _names_by_storage(model: nn.Module) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.device.type != "meta" and type(parameter) is nn.Parameter:
            found.setdefault(parameter.untyped_storage().data_ptr(), []).append(name)
    return found


def _refuse_weight(model: nn.Module, name: str, parameter: nn.Parameter, names: dict[int, list[str]]) -> None:
    quantised = any(getattr(part, "is_quantized", False) for part in pretrained(model))
    if quantised or parameter.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise _refuse(name, f"a quantised weight of {parameter.dtype}", "weights of 16 to 64 bits")
    if type(parameter) is not nn.Parameter or parameter.device.type == "meta":
        came = f"a {type(parameter).__name__} on {parameter.device}"
        raise _refuse(name, came, "weights that are here and whole (neither offloaded nor sharded)")
    sharing = names[parameter.untyped_storage().data_ptr()]
    if len(sharing) > 1:
        raise _refuse(name, f"a weight shared by {' and '.join(sharing)}", "weights of its own")


def _run(model: nn.Module, inputs: Mapping[str, Any] | None) -> dict[nn.Module, Call]:
    """The first call of each attention module while the model runs."""
    root = pretrained(model)[0]
    calls: dict[nn.Module, Call] = {module: Call() for module in attention_modules(model).values()}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = calls[module]
        if call.output is None:
            call.args, call.kwargs = tuple(map(_own, args)), {key: _own(value) for key, value in kwargs.items()}
            call.output = _own(_tensor(output))

    with ExitStack() as stack:
        for module in calls:
            handle = module.register_forward_hook(keep, with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(_listening(calls))
        given = dict(inputs) if inputs is not None else _small_inputs(root)
        if "use_cache" in inspect.signature(root.forward).parameters:
            given.setdefault("use_cache", False)
        try:
            root(**given)
        except AttemperError:
            raise
        except Exception as error:
            accepted = f"the arguments of a call of {type(root).__name__}"
            raise ArgumentError("inputs", error if inputs is None else list(given), accepted) from error
    return calls


@contextmanager
def _listening(calls: dict[nn.Module, Call]) -> Iterator[None]:
    def hear(module: nn.Module, case: Case) -> None:
        if module in calls and calls[module].case is None:
            calls[module].case = case

    backend.listeners.append(hear)
    try:
        yield
    finally:
        backend.listeners.remove(hear)


def _compare(plan: Plan) -> None:
    """The folded module on the inputs that the tempered one had: its queries and its output."""
    again = {plan.module: Call()}
    with _listening(again):
        output = _tensor(plan.module(*plan.call.args, **plan.call.kwargs))
    case = again[plan.module].case
    assert case is not None and plan.call.output is not None
    eps = torch.finfo(case.query.dtype).eps
    limit = 4 * eps if eps > 1e-4 else 64 * eps
    target = plan.case.query.double() * plan.betas.to(case.query.device)[:, None, None]
    steepness = 1 + case.scale * target.norm(dim=-1).max() * plan.case.key.double().norm(dim=-1).max()
    for what, new, old, most in (
        ("query", case.query.double(), target, limit),
        ("output", output.double(), plan.call.output.double(), limit * float(steepness)),
    ):
        off = float((new - old).square().mean().sqrt() / old.square().mean().sqrt().clamp(min=1e-30))
        if not off <= most:
            came = f"a {what} that would be off by {off:.1e} of its size"
            raise _refuse(plan.name, came, f"attention whose query is a known product (at most {most:.1e} off)")


def _small_inputs(model: Any) -> dict[str, Any]:
    """Two short random texts, or a random image: what the model's main input is."""
    random = torch.Generator().manual_seed(0)
    main, config = model.main_input_name, model.config
    if main == "input_ids":
        text = config.get_text_config()
        ids = torch.randint(0, text.vocab_size, (2, 12), generator=random).to(model.device)
        decoder = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
        return {"input_ids": ids, **decoder}
    if main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = vision.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        pixels = torch.rand(2, getattr(vision, "num_channels", 3), *sides, generator=random)
        return {"pixel_values": pixels.to(model.device, model.dtype)}
    made: dict[str, Any] = model.dummy_inputs
    return made


def _tensor(output: Any) -> Tensor:
    first = output[0] if isinstance(output, tuple | list) else output
    assert isinstance(first, Tensor)
    return first


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
