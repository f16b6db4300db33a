"""What statistics and temperatures cost beside torch's own attention, and beside what one would write by hand.

    python benchmarks/attention.py [ROUNDS]

Prints tables of ratios; what is compared runs in turns in one process, and the median of the rounds' ratios counts.
"""

import contextlib
import copy
import math
import platform
import statistics
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import attemper as at
from attemper.attention.cases import asked
from attemper.attention.functional import tempered

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
HEADS, WIDTH = 4, 64
Call = Callable[[], Any]
ADAPTIVE = at.Adaptive()


def seconds(call: Call) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def ratios(base: Call, *others: Call) -> tuple[float, list[float]]:
    """Milliseconds of the base, and for each other the median over rounds of its time over the base's beside it."""
    for call in (base, *others):
        call()
    bases, found = [], [[] for _ in others]
    for _ in range(ROUNDS):
        for i, other in enumerate(others):
            beside = seconds(base)
            found[i].append(seconds(other) / beside)
            bases.append(beside)
    return 1000 * statistics.median(bases), [statistics.median(each) for each in found]


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def table(title: str, *columns: str) -> None:
    print(f"\n{title}\n")
    row(*columns)
    row(*("---" for _ in columns))


def normal(*shape: int, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> Tensor:
    return (spread * torch.randn(*shape)).to(dtype)


def three(n: int, dtype: torch.dtype = torch.float32, heads: int = HEADS, batch: int = 1) -> tuple[Tensor, ...]:
    return tuple(normal(batch, heads, n, WIDTH, dtype=dtype) for _ in range(3))


def two_fused_calls(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """The keys in the place of the values give E[l], and with the logsumexp the entropy; then a plain call."""
    entropy = fused_entropy(query, key, causal)
    polynomial = torch.zeros_like(entropy)
    for coefficient in ADAPTIVE.coefficients:
        polynomial = polynomial * entropy + coefficient
    beta = torch.where(entropy > 0.5, polynomial.clamp(min=1), 1.0)
    return F.scaled_dot_product_attention(query * beta.unsqueeze(-1).to(query.dtype), key, value, is_causal=causal)


def fused_entropy(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    read, logsumexp = fused(query, key, key, 0.0, causal)
    return logsumexp - (query * read).float().sum(-1) / math.sqrt(query.shape[-1])


def dense_copy(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    """The lines that are copied about: the whole matrix, its softmax, its entropy, and the softmax again."""
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if causal:
        n = logits.shape[-1]
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
    p = torch.softmax(logits, -1)
    entropy = -(p * torch.log(p + 1e-9)).sum(-1, keepdim=True)
    polynomial = sum(c * entropy**i for i, c in enumerate(reversed(ADAPTIVE.coefficients)))
    beta = torch.where(entropy > 0.5, torch.clamp(polynomial, min=1.0), 1.0)
    return torch.softmax(beta * logits, -1) @ value


def main_table() -> None:
    table(
        f"Ratios to one `scaled_dot_product_attention`, {HEADS} heads of {WIDTH}",
        "type", "n", "causal", "plain, ms", "entropy and logsumexp", "adaptive", "maximum and minimum alone",
        "entropy, maximum and minimum", "plain output and statistics (`watching`)", "two fused calls",
    )  # fmt: skip
    for dtype in (torch.float32, torch.bfloat16):
        for n in (2048, 8192):
            for causal in (False, True):
                for precision in ("exact",) if dtype == torch.float32 else ("exact", "fast"):
                    main_row(dtype, n, causal, precision)


def main_row(dtype: torch.dtype, n: int, causal: bool, precision: str) -> None:
    query, key, value = three(n, dtype)
    options: dict[str, Any] = {"is_causal": causal, "precision": precision}

    def entropies() -> None:
        rows = at.attention_statistics(query, key, **options)
        (rows.entropy.sum() + rows.logsumexp.sum()).item()

    def extremes() -> None:
        rows = at.attention_statistics(query, key, **options)
        (rows.max_logit.sum() + rows.min_logit.sum()).item()

    def both() -> None:
        rows = at.attention_statistics(query, key, **options)
        (rows.entropy.sum() + rows.max_logit.sum() + rows.min_logit.sum()).item()

    base, found = ratios(
        lambda: F.scaled_dot_product_attention(query, key, value, is_causal=causal),
        entropies,
        lambda: at.attention(query, key, value, policy=ADAPTIVE, **options),
        extremes,
        both,
        lambda: tempered(asked(query, key, value, **options), None, measure=True),
        lambda: two_fused_calls(query, key, value, causal),
    )
    name = str(dtype).removeprefix("torch.") + (", fast" if precision == "fast" else "")
    row(name, n, "yes" if causal else "no", f"{base:.1f}", *(f"{ratio:.2f}" for ratio in found))


def error_table() -> None:
    table(
        "Largest and root-mean-square error of the entropy, nats, against float64 at logits of standard deviation 3"
        " and 8 (4096 rows of 2048 keys)",
        "type", "3, largest", "3, rms", "8, largest", "8, rms",
    )  # fmt: skip
    cases = {
        "float32": (torch.float32, "exact"),
        "bfloat16": (torch.bfloat16, "exact"),
        "bfloat16, fast": (torch.bfloat16, "fast"),
        "bfloat16, two fused calls": (torch.bfloat16, None),
    }
    for name, (dtype, precision) in cases.items():
        cells = []
        for deviation in (3, 8):
            query, key = (normal(1, 2, 2048, WIDTH, dtype=dtype, spread=math.sqrt(deviation)) for _ in range(2))
            exact = at.attention_statistics(query.double(), key.double()).entropy
            if precision is None:
                found = fused_entropy(query, key, False)
            else:
                found = at.attention_statistics(query, key, precision=precision).entropy
            error = (found - exact).abs()
            cells += [f"{error.max():.1e}", f"{error.square().mean().sqrt():.1e}"]
        row(name, *cells)


def other_cases() -> None:
    table(
        f"The other cases against their own plain equivalent, float32, {HEADS} heads of {WIDTH}, n = 2048 unless said",
        "case", "plain equivalent", "plain, ms", "entropy and logsumexp", "adaptive",
    )  # fmt: skip
    n = 2048
    query, key, value = three(n)
    distance = torch.arange(n)[:, None] - torch.arange(n)
    window = (distance >= 0) & (distance < 256)
    random = torch.rand(1, 1, n, n) > 0.2
    padding = (torch.arange(n) < 1500)[None, None, None]
    alibi = -distance.abs() * torch.tensor([2.0**-i for i in range(1, 5)])[:, None, None]
    sinks = torch.randn(HEADS)
    cap = 20.0
    grouped = normal(1, 1, n, WIDTH), normal(1, 1, n, WIDTH)
    cache = normal(1, 2, 32768, WIDTH), normal(1, 2, 32768, WIDTH)
    one = normal(1, 8, 1, WIDTH)
    wide = normal(1, HEADS, n, 2 * WIDTH)

    def sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Call:
        return lambda: F.scaled_dot_product_attention(q, k, v, **options)

    def eager(caps: bool) -> Call:
        """As models write it that torch's fused call does not take."""

        def call() -> Tensor:
            logits = query @ key.transpose(-1, -2) / math.sqrt(WIDTH)
            if caps:
                return torch.softmax(cap * torch.tanh(logits / cap), -1) @ value
            joined = torch.cat([logits, sinks[None, :, None, None].expand(1, HEADS, n, 1)], -1)
            return torch.softmax(joined, -1)[..., :-1] @ value

        return call

    fused, ours = "scaled_dot_product_attention", (query, key, value)
    cases: list[tuple[str, str, Call, tuple[Tensor, ...], dict[str, Any]]] = [
        ("bool mask", fused, sdpa(*ours, attn_mask=random), ours, {"attn_mask": random}),
        ("padding", fused, sdpa(*ours, attn_mask=padding), ours, {"attn_mask": padding}),
        ("window of 256, a bool mask", fused, sdpa(*ours, attn_mask=window), ours, {"attn_mask": window}),
        ("bias (ALiBi)", fused, sdpa(*ours, attn_mask=alibi), ours, {"attn_mask": alibi}),
        ("soft cap", "the matrix, by hand", eager(True), ours, {"softcap": cap}),
        ("sinks", "the matrix, by hand", eager(False), ours, {"sinks": sinks}),
        (
            "4 heads on 1", fused, sdpa(query, *grouped, enable_gqa=True, is_causal=True), (query, *grouped),
            {"enable_gqa": True, "is_causal": True},
        ),
        ("values twice as wide", fused, sdpa(query, key, wide), (query, key, wide), {}),
        (
            "decoding: 1 query, 8 heads on 2, 32768 keys", fused, sdpa(one, *cache, enable_gqa=True), (one, *cache),
            {"enable_gqa": True},
        ),
    ]  # fmt: skip
    for name, equivalent, plain, (q, k, v), options in cases:

        def entropies(q: Tensor = q, k: Tensor = k, options: dict[str, Any] = options) -> None:
            rows = at.attention_statistics(q, k, **options)
            (rows.entropy.sum() + rows.logsumexp.sum()).item()

        def adaptive(q: Tensor = q, k: Tensor = k, v: Tensor = v, options: dict[str, Any] = options) -> None:
            at.attention(q, k, v, policy=ADAPTIVE, **options)

        base, found = ratios(plain, entropies, adaptive)
        row(name, equivalent, f"{base:.2f}", *(f"{ratio:.2f}" for ratio in found))


def policies_table() -> None:
    table(
        "Policies, ratios to one plain call, float32, causal, n = 2048",
        "policy", "reads", "forward", "forward and backward",
    )  # fmt: skip
    query, key, value = three(2048)
    learning = [t.clone().requires_grad_() for t in (query, key, value)]

    def backward(**options: Any) -> Call:
        return lambda: torch.autograd.grad(at.attention(*learning, is_causal=True, **options).sum(), learning)

    plain = F.scaled_dot_product_attention
    plain_backward = lambda: torch.autograd.grad(plain(*learning, is_causal=True).sum(), learning)  # noqa: E731
    for policy in (
        at.Constant(0.9),
        at.LogLength(512),
        ADAPTIVE,
        at.EntropyTarget(4.0),
        at.CriticalScale(1.0),
    ):
        _, (forward,) = ratios(
            lambda: plain(query, key, value, is_causal=True),
            lambda policy=policy: at.attention(query, key, value, is_causal=True, policy=policy),
        )
        _, (both,) = ratios(plain_backward, backward(policy=policy))
        row(f"`{type(policy).__name__}`", ", ".join(policy.needs) or "nothing", f"{forward:.2f}", f"{both:.2f}")
    _, (both,) = ratios(plain_backward, backward(policy=ADAPTIVE, detach=True))
    row("`Adaptive`, detach=True", "entropy", "", f"{both:.2f}")


class Allocated(TorchDispatchMode):
    """The most bytes of new tensors that are alive at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = operation(*arguments, **(options or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                place = storage.data_ptr()
                if place and place not in self.alive:
                    self.alive[place] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, place, None)
        self.most = max(self.most, sum(self.alive.values()))
        return result


def dense_and_memory() -> None:
    query, key, value = three(2048)
    for causal in (False, True):
        base, (ratio,) = ratios(
            lambda causal=causal: at.attention(query, key, value, is_causal=causal, policy=ADAPTIVE),
            lambda causal=causal: dense_copy(query, key, value, causal),
        )
        kind = "causal" if causal else "not causal"
        print(f"\nThe dense copy, n = 2048, {kind}: {base * ratio:.0f} ms, {ratio:.1f} times ours ({base:.0f} ms).")
    memory_line()


def memory_line() -> None:
    """In processes of their own, whose peak the system knows."""
    code = (
        "import re, sys, torch, attemper as at\n"
        "policy = at.Adaptive()\n"
        "q, k, v = torch.randn(3, 1, 1, 32768, 64).unbind()\n"
        "at.attention(q[:, :, :256], k[:, :, :256], v[:, :, :256], policy=policy)\n"
        "def kilobytes(name): return int(re.search(name + r':\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"
        "before = kilobytes('VmRSS')\n"
        "if sys.argv[1] == 'attention': at.attention(q, k, v, is_causal=True, policy=policy)\n"
        "else: at.attention_statistics(q, k, is_causal=True).entropy\n"
        "print((kilobytes('VmHWM') - before) * 1024 / (q.numel() * 4))\n"
    )
    for what in ("attention", "statistics"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, what], capture_output=True, text=True, check=True
        )
        print(
            f"\nn = 32768, one head, causal, {what}: the process grows by {float(done.stdout):.1f} times at most"
            " the query's size (8 MiB, the output included); one matrix of logits is 512 of them."
        )


def in_a_model() -> None:
    try:
        from transformers import LlamaConfig, LlamaModel
    except ImportError:
        print("\ntransformers is not installed: nothing to compare within a model.")
        return
    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaModel(config).eval()
    ids = torch.randint(1000, (1, 2048))

    def plain() -> None:
        model(ids, use_cache=False)

    def under_a_constant() -> None:
        with at.tempering(at.Constant(1.0)):
            model(ids, use_cache=False)

    def watched() -> None:
        with at.watching() as record:
            model(ids, use_cache=False)
        record.to_frame()

    def by_output_attentions() -> None:
        for weights in model(ids, use_cache=False, output_attentions=True).attentions:
            torch.special.entr(weights).sum(-1)

    def memory_of(call: Call) -> float:
        with Allocated() as allocated:
            call()
        return allocated.most / 2**20

    base, (constant, seen) = ratios(plain, under_a_constant, watched)
    megabytes = memory_of(watched)
    ours = at.huggingface.temper(copy.deepcopy(model), at.Constant(1.0))
    _, (backend,) = ratios(plain, lambda: ours(ids, use_cache=False))
    model.set_attn_implementation("eager")
    eager = 1000 * statistics.median(seconds(by_output_attentions) for _ in range(ROUNDS))
    eager_megabytes = memory_of(by_output_attentions)
    table("A Llama of 4 layers, width 256, n = 2048", "what", "ms", "ratio", "most new tensors at a time, MiB")
    row("plain (sdpa)", f"{base:.0f}", "1.00", "")
    row("`at.tempering(at.Constant(1.0))`", f"{base * constant:.0f}", f"{constant:.3f}", "")
    row("`at.huggingface.temper(model, at.Constant(1.0))`", f"{base * backend:.0f}", f"{backend:.3f}", "")
    row("`at.watching()`: entropies of all heads", f"{base * seen:.0f}", f"{seen:.2f}", f"{megabytes:.0f}")
    row("`output_attentions=True`, then the entropies", f"{eager:.0f}", f"{eager / base:.2f}", f"{eager_megabytes:.0f}")


def main() -> None:
    torch.manual_seed(0)
    # of random rows most lie above the published polynomial's reach
    warnings.filterwarnings("ignore", message="Adaptive")
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    with torch.no_grad(), contextlib.suppress(KeyboardInterrupt):
        main_table()
        error_table()
        other_cases()
        dense_and_memory()
        in_a_model()
    policies_table()


if __name__ == "__main__":
    main()
