import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import attemper as at
from attemper.attention.dispersion_report import by_layer, draw, report
from attemper.errors import ArgumentError, DataError, FileError

LENGTHS = (8, 16, 32)


class Attention(nn.Module):
    """Two heads of width 3: logits are known, whatever the input: a matrix of scores a head, made of fixed keys."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, is_causal=False):
        query, key = (f(x).unflatten(-1, (2, 3)).transpose(1, 2) for f in (self.q_proj, self.k_proj))
        return nn.functional.scaled_dot_product_attention(query, key, key, is_causal=is_causal)


def inputs(batch=2):
    return {n: 3 * torch.randn(batch, n, 6) for n in LENGTHS}


def by_hand(model, x, causal):
    """Means over heads' rows that see at least three quarters of the most keys, from the whole matrix in float64."""
    query, key = (f(x).detach().double().unflatten(-1, (2, 3)).transpose(1, 2) for f in (model.q_proj, model.k_proj))
    logits = query @ key.transpose(-1, -2) / math.sqrt(3)
    n = x.shape[1]
    if causal:
        logits = logits.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    p = torch.softmax(logits, -1)
    length = (logits > -math.inf).sum(-1)
    counted = length >= 0.75 * n
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    spread = logits.amax(-1) - logits.masked_fill(logits == -math.inf, math.inf).amin(-1)
    columns = {
        "keys": length.double(),
        "entropy": entropy,
        "normalised_entropy": entropy / length.double().log(),
        "largest_weight": p.amax(-1),
        "logit_spread": spread,
    }
    return {name: [v[:, h][counted[:, h]].mean().item() for h in range(2)] for name, v in columns.items()}


@pytest.mark.parametrize("causal", [False, True])
def test_each_number_is_the_one_that_the_whole_matrix_gives(causal):
    model, given = Attention(), inputs()
    frame = at.dispersion(model, {n: {"x": x, "is_causal": causal} for n, x in given.items()})
    assert list(frame.columns[:4]) == ["layer", "head", "length", "rows"]
    assert len(frame) == 2 * len(LENGTHS)
    for n, x in given.items():
        rows = frame[frame.length == n]
        assert rows["rows"].tolist() == [2 * (n // 4 + 1 if causal else n)] * 2
        for name, expected in by_hand(model, x, causal).items():
            np.testing.assert_allclose(rows[name], expected, rtol=1e-4, err_msg=name)


def test_the_slope_is_that_of_a_line_through_the_entropies():
    frame = at.dispersion(Attention(), inputs())
    for found in frame.attrs["slopes"]:
        rows = frame[frame["head"] == found["head"]]
        x, y = np.log(rows["keys"]), rows.entropy
        (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
        assert found["slope"] == pytest.approx(slope, rel=1e-9)
        assert found["error"] == pytest.approx(math.sqrt(covariance[0, 0]), rel=1e-6)


def test_uniform_attention_has_slope_one_and_a_sharp_one_has_none():
    model = Attention()
    with torch.no_grad():
        for projection in (model.q_proj, model.k_proj):
            projection.weight.zero_()
    uniform = at.dispersion(model, inputs())
    assert [s["slope"] for s in uniform.attrs["slopes"]] == pytest.approx([1, 1], abs=1e-5)
    assert uniform.normalised_entropy.tolist() == pytest.approx([1] * 6, abs=1e-5)
    with at.tempering(at.Constant(1e-3)):
        sharp = at.dispersion(Attention(), inputs())
    assert max(abs(s["slope"]) for s in sharp.attrs["slopes"]) < 0.1


def test_no_spread_exceeds_its_bound_and_one_case_reaches_it():
    model = Attention()
    frame = at.dispersion(model, inputs())
    assert (frame.logit_spread < frame.spread_bound).all()
    # all in one direction: every inequality of the bound is an equality
    with torch.no_grad():
        for projection in (model.q_proj, model.k_proj):
            projection.weight.copy_(torch.eye(6))
            projection.bias = None
    x = torch.zeros(1, 4, 6)
    x[0, :, 0] = torch.tensor([2.0, 2.0, -2.0, 2.0])
    tight = at.dispersion(model, {4: x})
    first = tight[tight["head"] == 0]
    assert first.spread_bound.item() == pytest.approx(2 * 4 / math.sqrt(3), rel=1e-5)
    assert first.logit_spread.item() == pytest.approx(first.spread_bound.item(), rel=1e-5)


def test_biases_of_the_projections_count_in_the_bound():
    model = Attention()
    with torch.no_grad():
        for projection in (model.q_proj, model.k_proj):
            projection.weight.copy_(torch.eye(6))
            projection.bias.copy_(5 * torch.tensor([1.0, 0, 0, 1, 0, 0]))
    x = torch.zeros(1, 4, 6)
    x[0, :, 0] = torch.tensor([0.1, -0.1, 0.1, -0.1])
    frame = at.dispersion(model, {4: x})
    # of the first head: (5.1, 0, 0) times a difference of 0.2, which is more than 2 * 26 * 0.01 / sqrt(3) without them
    assert frame.logit_spread.max() == pytest.approx(5.0 * 0.2 / math.sqrt(3), rel=0.03)
    assert frame.logit_spread.max() > 2 * 26 * 0.01 / math.sqrt(3)
    assert (frame.logit_spread <= frame.spread_bound).all()


def test_heads_that_share_a_key_share_its_part_of_the_bound():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaModel(config)
    layer = model.layers[0].self_attn
    with torch.no_grad():
        layer.k_proj.weight[8:] *= 100
    bounds = at.dispersion(model, {8: tokens(8)}).spread_bound.tolist()
    tops = [
        [torch.linalg.svdvals(part.detach())[0].item() for part in projection.weight.split(8)]
        for projection in (layer.q_proj, layer.k_proj)
    ]
    ratios = [
        bound / (query * tops[1][head // 2]) for head, (bound, query) in enumerate(zip(bounds, tops[0], strict=True))
    ]
    assert ratios == pytest.approx([ratios[0]] * 4, rel=1e-5)


@pytest.mark.parametrize("name", ["phi3", "gpt_neox"])
def test_a_projection_of_all_three_is_taken_apart_as_the_model_does(name, hf):
    """The bound of a head is reached by inputs along the top directions of its own query and key."""
    model = at.huggingface.temper(hf.build(name), at.Constant(1.0))
    with hf.heard() as calls:
        model(**hf.inputs(name))
    module, case = calls[0]
    at.huggingface.untemper(model)
    fused = module.qkv_proj if name == "phi3" else module.query_key_value
    frame = at.dispersion(model, {14: hf.inputs(name)})
    weight = fused.weight.detach()
    width = case.query.shape[-1]
    if name == "phi3":
        queries, keys = weight[:32].split(width), weight[32:48].split(width)
    else:
        parts = weight.reshape(4, 3, width, -1)
        queries, keys = parts[:, 0].unbind(), parts[:, 1].unbind()
    tops = [
        torch.linalg.svdvals(q)[0] * torch.linalg.svdvals(keys[h * len(keys) // 4])[0] for h, q in enumerate(queries)
    ]
    bounds = frame.spread_bound[:4].to_numpy()
    if name == "phi3":
        np.testing.assert_allclose(bounds / bounds[0], torch.stack(tops).numpy() / tops[0].item(), rtol=1e-4)
    assert (frame.logit_spread <= frame.spread_bound).all()
    assert len({round(float(bound), 3) for bound in bounds}) == 4


def test_a_rotation_that_stretches_logits_stretches_the_bound(hf):
    rope = {"rope_type": "yarn", "factor": 16.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    bounds = [
        at.dispersion(model, {14: hf.inputs("llama")}).spread_bound.to_numpy()
        for model in (hf.build("llama"), hf.build("llama", rope_parameters=rope))
    ]
    np.testing.assert_allclose(bounds[1][:4] / bounds[0][:4], (0.1 * math.log(16) + 1) ** 2, rtol=1e-4)


def test_it_leaves_the_model_as_it_was():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, dropout=0.5, batch_first=True), 2)
    encoder.layers[0].eval()
    modes = [module.training for module in encoder.modules()]
    frame = at.dispersion(encoder, {n: torch.randn(2, n, 8) for n in LENGTHS})
    assert frame.layer.unique().tolist() == ["layers.0.self_attn", "layers.1.self_attn"]
    assert (frame.logit_spread <= frame.spread_bound).all()
    assert [module.training for module in encoder.modules()] == modes
    assert all(not module._forward_pre_hooks and not module._forward_hooks for module in encoder.modules())
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.fixture
def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=64, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2Model(config)


def tokens(n):
    return {"input_ids": torch.randint(50, (2, n))}


def test_models_of_transformers_whatever_attention_they_run(gpt2):
    given = {n: tokens(n) for n in LENGTHS}
    frames = []
    for name in ("sdpa", "eager"):
        gpt2.set_attn_implementation(name)
        frames.append(at.dispersion(gpt2, given))
        assert gpt2.config._attn_implementation == name
    for column in ("entropy", "largest_weight", "logit_spread", "spread_bound"):
        np.testing.assert_allclose(frames[0][column], frames[1][column], rtol=1e-4)
    assert frames[0].layer.unique().tolist() == ["h.0.attn", "h.1.attn"]
    assert (frames[0].logit_spread <= frames[0].spread_bound).all()


def test_a_bias_leaves_the_bound_open():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(vocab_size=50, d_model=12, d_kv=4, num_heads=3, d_ff=16, num_layers=1)
    model = transformers.T5Model(config)
    given = {n: tokens(n) | {"decoder_input_ids": torch.randint(50, (2, n))} for n in LENGTHS}
    frame = at.dispersion(model, given)
    crosses = frame.layer.str.contains("EncDecAttention")
    assert frame[~crosses].spread_bound.isna().all()
    assert (frame[crosses].logit_spread <= frame[crosses].spread_bound).all()
    assert frame.layer.nunique() == 3


def test_a_tempered_model_is_measured_as_it_runs(gpt2):
    given = {n: tokens(n) for n in LENGTHS}
    plain = at.dispersion(gpt2, given)
    at.huggingface.temper(gpt2, at.Constant(0.1))
    tempered = at.dispersion(gpt2, given)
    np.testing.assert_allclose(tempered[:6].logit_spread[::3], 10 * plain[:6].logit_spread[::3], rtol=0.5)
    assert (tempered.entropy < plain.entropy).all()
    assert plain.spread_bound.notna().all()
    assert tempered.spread_bound.isna().all()
    at.huggingface.untemper(gpt2)
    with at.tempering(at.Constant(0.1)):
        inside = at.dispersion(gpt2, given)
    assert inside.spread_bound.isna().all()
    np.testing.assert_allclose(inside.entropy, tempered.entropy, rtol=1e-5)


def test_the_policy_of_the_registered_backend_is_in_force(gpt2, no_default):
    given = {n: tokens(n) for n in LENGTHS}
    plain = at.dispersion(gpt2, given)
    at.huggingface.register(at.Constant(0.1))
    gpt2.set_attn_implementation("attemper")
    registered = at.dispersion(gpt2, given)
    assert (registered.entropy < plain.entropy).all()
    assert registered.spread_bound.isna().all()
    assert gpt2.config._attn_implementation == "attemper"


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        ("gpt2", {8: 1}, "^model: an nn.Module is accepted, but 'gpt2' came"),
        (nn.Linear(2, 2), {}, "^inputs: a dict from a length"),
        (nn.Linear(2, 2), [1], "^inputs: a dict from a length"),
        (nn.Linear(2, 2), {"8": torch.zeros(8, 2)}, "^length in inputs: a whole number from 1"),
        (nn.Linear(2, 2), {8: torch.zeros(8, 2)}, "^model: .* but 'Linear, in which no attention was seen'"),
    ],
)
def test_refusals(model, given, says):
    with pytest.raises(ArgumentError, match=says):
        at.dispersion(model, given)


def test_the_report_of_a_saved_model(gpt2, tmp_path):
    gpt2.save_pretrained(tmp_path / "model")
    frame, _ = report(str(tmp_path / "model"), (8, 16), None, 2, 0, tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "dispersion.json").read_text())
    assert saved["made"]["class"] == "GPT2Model"
    assert saved["made"]["source"] == "random tokens"
    assert [row["entropy"] for row in saved["rows"]] == frame.entropy.tolist()
    assert len(saved["slopes"]) == 6
    assert saved["slopes"][0]["error"] is None
    assert (tmp_path / "out" / "dispersion.png").read_bytes()[:4] == b"\x89PNG"
    assert saved["made"]["versions"]["transformers"].count(".") == 2
    with pytest.warns(UserWarning, match="was made for 64 positions, and 65 are asked for"), pytest.raises(IndexError):
        report(str(tmp_path / "model"), (8, 65), None, 2, 0, tmp_path / "out")
    again, _ = report(str(tmp_path / "model"), (8, 16), None, 2, 0, tmp_path / "out")
    assert again.equals(frame)
    layers = by_layer(frame)
    assert layers.index.tolist() == ["h.0.attn", "h.1.attn"]
    of_first = frame[(frame.layer == "h.0.attn") & (frame.length == 8)]
    assert layers["entropy 8"].iloc[0] == pytest.approx(of_first.entropy.mean())
    lines = draw(frame).axes[0].lines
    assert [line.get_label() for line in lines] == ["h.0.attn", "h.1.attn", "uniform: ln n"]
    np.testing.assert_allclose(lines[0].get_ydata()[0], of_first.entropy.mean())


def test_the_report_reads_a_text(gpt2, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["[UNK]", *"abcdefghij"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    gpt2.save_pretrained(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text(" ".join("abcdefghij" * 3))
    with pytest.raises(FileError, match="has no tokenizer for a text; without --text random tokens"):
        report(str(tmp_path / "model"), (8,), text, 1, 0, tmp_path / "out")
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(tmp_path / "model")
    _, made = report(str(tmp_path / "model"), (8, 16), text, 1, 0, tmp_path / "out")
    assert made["source"].startswith("text.txt, sha256 ")
    with pytest.raises(DataError, match="the text has 30 tokens, and a length of 31 is asked for"):
        report(str(tmp_path / "model"), (8, 31), text, 1, 0, tmp_path / "out")
    with pytest.raises(FileError, match="no such file"):
        report(str(tmp_path / "model"), (8,), tmp_path / "nothing.txt", 1, 0, tmp_path / "out")
    with pytest.raises(FileError, match="cannot load the model"):
        report(str(tmp_path / "nothing"), (8,), None, 1, 0, tmp_path / "out")


MODELS = ("llama", "gpt2", "bert", "t5", "gemma2", "gemma3", "qwen2", "qwen3", "mistral", "vit", "gpt_oss")
FUSED = ("phi3", "gpt_neox", "olmo2")


@pytest.mark.parametrize("name", MODELS + FUSED)
def test_every_kind_of_model_is_measured_and_bounded_where_it_can_be(name, hf):
    model = hf.build(name)
    lengths = (14,) if name == "vit" else (8, 14)
    frame = at.dispersion(model, {n: hf.inputs(name, length=n) for n in lengths})
    layers = 6 if name == "t5" else 2
    assert len(frame) == layers * 4 * len(lengths)
    assert frame.entropy.between(0, np.log(frame["keys"]) + (0.7 if name == "gpt_oss" else 1e-5)).all()
    # norms (qwen3, gemma3), biases (t5) and a sink, which is no product, leave the bound open
    bounded = frame[frame.spread_bound.notna()]
    expected = {"qwen3": 0, "gemma3": 0, "olmo2": 0, "gpt_oss": 0, "t5": 2 * 4 * len(lengths)}
    assert len(bounded) == expected.get(name, len(frame))
    assert (bounded.logit_spread <= bounded.spread_bound).all()
    assert model.config._attn_implementation == "eager"
