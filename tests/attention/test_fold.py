import copy

import pytest
import torch
import transformers as tr
from torch import nn

import attemper as at
from attemper.attention import fold as folding
from attemper.errors import ArgumentError

CLOSE, APART = 2e-5, 0.05
# what makes the query of each, as far as it is not a projection by itself
FOLDABLE = ("llama", "gpt2", "bert", "qwen2", "mistral", "vit", "phi3", "gpt_neox", "olmo2")
SHARED_NORM = ("qwen3", "gemma3")

HEADS = at.PerHead(
    {(0, 0): at.Constant(0.5), (0, 3): at.Constant(3.0), (1, 1): at.Constant(0.1), (1, None): at.Constant(0.7)}
)


def folded_and_tempered(hf, name, policy, **own):
    model, given = hf.build(name, **own), hf.inputs(name, None if name == "vit" else "left")
    plain = hf.output(model, given)
    tempered = hf.output(at.huggingface.temper(copy.deepcopy(model), policy), given)
    assert hf.gap(tempered, plain) > APART
    return model, given, tempered


@pytest.mark.parametrize("name", FOLDABLE)
def test_constants_per_head_become_weights(hf, name):
    model, given, tempered = folded_and_tempered(hf, name, HEADS)
    assert at.huggingface.fold(model, HEADS) is model
    assert model.config._attn_implementation == "eager"
    assert hf.gap(hf.output(model, given), tempered) < CLOSE
    assert not any("attemper" in key for module in model.modules() for key in vars(module))
    assert not model.training


@pytest.mark.parametrize("name", [*FOLDABLE, *SHARED_NORM])
def test_one_constant_for_all(hf, name):
    model, given, tempered = folded_and_tempered(hf, name, at.Constant(0.4))
    at.huggingface.fold(model, at.Constant(0.4))
    assert hf.gap(hf.output(model, given), tempered) < CLOSE


@pytest.mark.parametrize("name", SHARED_NORM)
def test_a_norm_that_heads_share_takes_one_constant_a_layer(hf, name):
    policy = at.PerHead({(1, None): at.Constant(0.4)})
    model, given, tempered = folded_and_tempered(hf, name, policy)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    at.huggingface.fold(model, policy)
    assert hf.gap(hf.output(model, given), tempered) < CLOSE
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, weights[key])]
    assert changed == ["model.layers.1.self_attn.q_norm.weight"]
    again = hf.build(name)
    with pytest.raises(
        ArgumentError, match="^model: one constant for all heads .*a query norm that heads share in model"
    ):
        at.huggingface.fold(again, HEADS)


def test_only_the_query_changes(hf):
    model = hf.build("qwen2")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    at.huggingface.fold(model, at.PerHead({(1, 2): at.Constant(0.25)}))
    for key, value in model.state_dict().items():
        expected = before[key]
        if key.startswith("model.layers.1.self_attn.q_proj"):
            expected = expected.clone()
            expected[16:24] *= 4
        assert torch.equal(value, expected), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_type(hf, dtype):
    model = hf.build("llama").to(dtype)
    at.huggingface.fold(model, HEADS)
    expected = at.huggingface.fold(hf.build("llama").to(dtype).double(), HEADS)
    assert {p.dtype for p in model.parameters()} == {dtype}
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other.to(dtype))


def test_the_folded_checkpoint_is_an_ordinary_one(hf, tmp_path):
    model, given, tempered = folded_and_tempered(hf, "llama", HEADS)
    at.huggingface.temper(model, HEADS)
    at.huggingface.fold(model, HEADS).save_pretrained(tmp_path)
    assert model.config._attn_implementation == "eager"
    assert "attemper" not in (tmp_path / "config.json").read_text()
    again = tr.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert hf.gap(hf.output(again, given), tempered) < CLOSE


def test_other_inputs_and_parts_that_no_policy_names(hf):
    vision = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = tr.LlavaConfig(
        text_config=tr.LlamaConfig(**hf.GROUPED),
        vision_config=tr.CLIPVisionConfig(**vision, image_size=16, patch_size=8),
        image_token_index=60,
        vision_feature_layer=-1,
    )
    model = hf.enlarged(tr.LlavaForConditionalGeneration(config).eval())
    ids = torch.cat([torch.full((1, 4), 60), torch.randint(3, 60, (1, 6))], 1)
    given = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 16, 16)}
    half = hf.output(at.huggingface.temper(copy.deepcopy(model), at.Constant(0.5)), given)
    with pytest.raises(ArgumentError, match="^inputs: "):
        at.huggingface.fold(model, at.Constant(0.5))
    with pytest.raises(ArgumentError, match="^inputs: the arguments of a call of LlavaForConditionalGeneration is"):
        at.huggingface.fold(model, at.Constant(0.5), inputs={"texts": ["a"]})
    texts = {"input_ids": given["input_ids"][:, 4:]}
    with pytest.raises(ArgumentError, match="^inputs: a call that reaches every .* do not reach model.vision_tower"):
        at.huggingface.fold(model, at.Constant(0.5), inputs=texts)
    at.huggingface.fold(copy.deepcopy(model), at.PerHead({(2, 1): at.Constant(0.5)}), inputs=texts)
    at.huggingface.fold(model, at.Constant(0.5), inputs=given)
    assert hf.gap(hf.output(model, given), half) < CLOSE


REFUSED = {
    "gemma2": "a soft cap of 1.0 in model.layers.0.self_attn",
    "gpt_oss": "a sink in model.layers.0.self_attn",
    "t5": "an additive bias in encoder.block.0",
}


def unchanged(model, call):
    """It raises, and leaves everything as it was."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    config = model.config._attn_implementation
    with pytest.raises(ArgumentError) as caught:
        call()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.config._attn_implementation == config
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_query_cannot_carry_is_refused(hf, name):
    model = hf.build(name)
    message = unchanged(model, lambda: at.huggingface.fold(model, at.Constant(0.5)))
    assert message.startswith("model: ") and REFUSED[name] in message


def test_a_temperature_of_one_is_no_reason_to_refuse(hf):
    model, given = hf.build("gemma2"), hf.inputs("gemma2")
    own = hf.output(model, given)
    at.huggingface.fold(model, at.PerHead({(0, 1): at.Constant(1.0)}, at.Constant(1.0)))
    assert torch.equal(hf.output(model, given), own)


@pytest.mark.parametrize("policy", [at.Adaptive(), at.PerHead({(0, 0): at.LogLength(4)}), 0.5, None])
def test_policies_that_are_no_constants(hf, policy):
    model = hf.build("llama")
    message = unchanged(model, lambda: at.huggingface.fold(model, policy))
    assert message.startswith("policy: at.Constant, or at.PerHead of nothing else, is accepted")


def test_weights_that_cannot_be_scaled(hf, monkeypatch):
    def fold(model):
        return unchanged(model, lambda: at.huggingface.fold(model, at.Constant(0.5)))

    shared = hf.build("llama")
    shared.model.layers[1].self_attn.q_proj.weight = shared.model.layers[0].self_attn.q_proj.weight
    assert "a weight shared by model.layers.0.self_attn.q_proj.weight and model.layers.1" in fold(shared)
    other = hf.build("llama")
    other.model.layers[1].self_attn.q_proj = type("Linear8bit", (nn.Linear,), {})(32, 32, bias=False)
    assert "test_fold.Linear8bit in model.layers.1.self_attn.q_proj" in fold(other)
    quantised = hf.build("llama")
    quantised.is_quantized = True
    assert "a quantised weight" in fold(quantised)
    monkeypatch.delitem(folding.PROJECTIONS, "q_proj")
    assert "a LlamaAttention with none of them in model.layers.0.self_attn" in fold(hf.build("llama"))


def test_norms_that_cannot_be_scaled(hf):
    for norm, came in ((nn.LayerNorm(8, elementwise_affine=False), "without one weight"), (nn.LayerNorm(4), "(4,)")):
        with pytest.raises(ArgumentError) as caught:
            folding._norm_factors("a.q_norm", norm, torch.ones(4), 8)
        assert came in str(caught.value)


def test_a_wrong_layout_is_seen_and_undone(hf, monkeypatch):
    for name, attribute, place in (("gpt_neox", "query_key_value", "first"), ("phi3", "qkv_proj", "by head")):
        monkeypatch.setitem(folding.PROJECTIONS, attribute, place)
        model = hf.build(name, **({"num_key_value_heads": 4} if name == "phi3" else {}))
        message = unchanged(model, lambda model=model: at.huggingface.fold(model, at.Constant(0.5)))
        assert "a query that would be off by" in message


def test_a_failed_fold_leaves_a_tempered_model_tempered(hf, monkeypatch):
    model, given = hf.build("gpt_neox"), hf.inputs("gpt_neox")
    half = hf.output(at.huggingface.temper(model, at.Constant(0.5)), given)
    monkeypatch.setitem(folding.PROJECTIONS, "query_key_value", "first")
    unchanged(model, lambda: at.huggingface.fold(model, at.Constant(0.25)))
    assert torch.equal(hf.output(model, given), half)
    model.train()
    unchanged(model, lambda: at.huggingface.fold(model, at.Constant(0.25)))
    assert model.training
    at.huggingface.untemper(model)
    assert model.config._attn_implementation == "eager"
