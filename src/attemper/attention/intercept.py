"""Attention of models one already has: tempered, or watched, while a context lasts."""

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..errors import ArgumentError
from ..knob.needs import check_layers, check_policy
from ..knob.policies import Policy
from ..knob.rows import RowStatistics
from .active import needs_layer
from .layers import attention_modules, following
from .multihead import multi_head_attention_forward, past_its_check, scaled_dot_product_attention
from .record import Record
from .stacks import InForce, here, in_force, standing_in, told

T = TypeVar("T")
OURS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    F.multi_head_attention_forward: multi_head_attention_forward,
}
# torch would leave the mode for as long as they last, and with it what they recompute
BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}


def tempering(policy: Policy | None, model: nn.Module | None = None) -> AbstractContextManager[None]:
    """While the context lasts, every attention of this thread that goes through torch is tempered, whoever calls it.

    That is `scaled_dot_product_attention`, and `nn.MultiheadAttention` with all that is built of it, whose returned
    weights are the tempered ones; not what a model computes by itself ("eager"). The innermost policy is the one in
    force, None is plain softmax, and a call with a policy of its own keeps it. A policy that differs from layer to
    layer (`PerHead`) needs the model that runs. A fully masked row gives 0, where torch gives NaN or an average. Where
    a model recomputes its activations in backward (checkpointing), backward belongs into the context too. The context
    may be entered again.

    >>> import torch
    >>> from attemper import Constant
    >>> query = torch.randn(1, 2, 5, 8)
    >>> with tempering(Constant(0.5)):
    ...     sharp = F.scaled_dot_product_attention(query, query, query)
    >>> torch.allclose(sharp, F.scaled_dot_product_attention(2 * query, query, query), atol=1e-6)
    True
    """
    return _Again(lambda: _tempering(policy, model))


def watching(
    model: nn.Module | None = None, *, choose: Callable[[RowStatistics], Tensor] | None = None
) -> AbstractContextManager[Record]:
    """While the context lasts, every attention that `tempering` would reach is measured, as it was really used.

    The record that it gives has a row per call and head in `to_frame()`, with the names of `model`'s modules.
    `choose` takes the rows of a call and says (a bool a row) which of them count. Every entering begins a new record.
    """
    return _Again(lambda: _watching(model, choose))


@contextmanager
def _tempering(policy: Policy | None, model: nn.Module | None) -> Iterator[None]:
    if policy is not None:
        check_policy(policy)
    _check_model(model)
    with ExitStack() as stack:
        find = None
        if model is not None:
            check_layers(policy, len(attention_modules(model)))
            _warn_of_eager(model)
        if model is not None and needs_layer(policy):
            numbers = {module: number for number, module in enumerate(attention_modules(model).values())}
            running = stack.enter_context(following(model))

            def find() -> int | None:
                module = running.innermost(numbers)
                return None if module is None else numbers[module]

        stack.enter_context(in_force(InForce(policy, find)))
        stack.enter_context(_intercepted())
        yield


@contextmanager
def _watching(model: nn.Module | None, choose: Callable[[RowStatistics], Tensor] | None) -> Iterator[Record]:
    _check_model(model)
    with nullcontext() if model is None else following(model) as running:
        names = None if model is None else {module: name for name, module in model.named_modules()}
        record = Record(names, running, choose)
        with told(record), _intercepted():
            yield record
        if model is not None and running is not None and running.ran and not record:
            warnings.warn(
                f"watching saw no attention of {type(model).__name__}: it may be written out as matrix products, as the"
                " eager attention of transformers is. at.huggingface.temper(model, at.Constant(1.0)) makes it visible",
                stacklevel=4,
            )


class _Interception(TorchFunctionMode):
    """Sees each call that torch lets others answer, so it does as little as it can for those that are not ours."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks = here()
        self.untraced: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in OURS:
            return self._ours(OURS[func], args, kwargs or {})
        if func in BACKWARD:
            with self:
                return past_its_check(func)(*args, **kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _ours(self, ours: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (dynamo := sys.modules.get("torch._dynamo")) is not None:
            # it fails on a function that was made of another's code: a compiled graph breaks here
            ours = self.untraced.get(ours) or self.untraced.setdefault(ours, dynamo.disable(ours))
        if here() is self.stacks:
            return ours(*args, **kwargs)
        # a worker thread of autograd's, to which torch brought this mode
        with standing_in(self.stacks):
            return ours(*args, **kwargs)


class _Here(threading.local):
    depth = 0
    mode: AbstractContextManager[Any]


_here = _Here()


@contextmanager
def _intercepted() -> Iterator[None]:
    """One mode a thread is enough for all the contexts that are open."""
    with _slow_path():
        if _here.depth == 0:
            _here.mode = cast(AbstractContextManager[Any], _Interception())
            _here.mode.__enter__()
        _here.depth += 1
        try:
            yield
        finally:
            _here.depth -= 1
            if _here.depth == 0:
                _here.mode.__exit__(None, None, None)


class _FastPath:
    """Whose kernels call no attention that a mode sees; torch leaves it by itself but in what is compiled."""

    lock, users, before = threading.Lock(), 0, True


@contextmanager
def _slow_path() -> Iterator[None]:
    """torch has one switch for all threads: the first to come turns it off, and the last to leave back."""
    mha = torch.backends.mha
    with _FastPath.lock:
        if _FastPath.users == 0:
            _FastPath.before = mha.get_fastpath_enabled()
            mha.set_fastpath_enabled(False)
        _FastPath.users += 1
    try:
        yield
    finally:
        with _FastPath.lock:
            _FastPath.users -= 1
            if _FastPath.users == 0:
                mha.set_fastpath_enabled(_FastPath.before)


class _Open(threading.local):
    def __init__(self) -> None:
        self.contexts: list[AbstractContextManager[Any]] = []


class _Again(AbstractContextManager[T]):
    """A context that may be entered again, also while it is open."""

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make, self._here = make, _Open()

    def __enter__(self) -> T:
        context = self._make()
        value = context.__enter__()
        self._here.contexts.append(context)
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._here.contexts.pop().__exit__(kind, error, trace)


def _warn_of_eager(model: nn.Module) -> None:
    kinds = [getattr(getattr(module, "config", None), "_attn_implementation", None) for module in model.modules()]
    if "eager" in kinds:
        warnings.warn(
            f"{type(model).__name__} runs the eager attention of transformers, which tempering does not reach:"
            " at.huggingface.temper(model, policy) does",
            stacklevel=6,
        )


def _check_model(model: object) -> None:
    if model is not None and not isinstance(model, nn.Module):
        raise ArgumentError("model", model, "an nn.Module or None")
