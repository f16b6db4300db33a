import copy
import dataclasses
import sys
import warnings

import pytest
import torch
import transformers as tr
from torch import nn

import attemper as at
from attemper.attention import backend
from attemper.errors import ArgumentError, MissingExtraError

NAMES = ("llama", "gpt2", "bert", "t5", "gemma2", "gemma3", "qwen2", "qwen3", "mistral", "vit", "gpt_oss")
DECODERS = tuple(name for name in NAMES if name not in ("bert", "t5", "vit"))
WINDOWED = ("gemma2", "gemma3", "mistral", "gpt_oss")
CLOSE, APART = 2e-5, 0.05

# --- the outputs of a model's own attention


@pytest.mark.parametrize(
    ("name", "padding"), [(n, side) for n in NAMES for side in (None, "left", "right") if n != "vit" or side is None]
)
def test_at_temperature_one_a_model_gives_its_own_outputs(hf, name, padding):
    model, given = hf.build(name), hf.inputs(name, padding)
    own = hf.output(model, given)
    at.huggingface.temper(model, at.Constant(1.0))
    with hf.heard() as calls:
        assert hf.gap(hf.output(model, given), own) < CLOSE
    assert len(calls) == (6 if name == "t5" else 2)
    assert min(hf.spread(case) for _, case in calls) >= 1
    at.huggingface.untemper(model)
    assert torch.equal(hf.output(model, given), own)


def no_cap(case):
    return {"softcap": None}


def no_sinks(case):
    return {"sinks": None}


def no_bias(case):
    return {"bias": None, "mask": None if case.bias is None else case.bias > -torch.inf}


def no_padding(case):
    # the first text has none: what no text of the batch sees remains hidden
    both = {key: getattr(case, key) for key in ("mask", "bias")}
    return {key: None if t is None else t[:1] for key, t in both.items()}


def no_window(case):
    return {"mask": None, "is_causal": case.queries > 1}


def no_causality(case):
    return {"mask": None, "is_causal": False}


MUTANTS = [
    *(("gemma2", None, no_cap), ("gpt_oss", None, no_sinks), ("t5", None, no_bias), ("t5", None, no_causality)),
    *((name, None, no_window) for name in WINDOWED),
    *((name, None, no_causality) for name in DECODERS),
    *((name, "left", no_padding) for name in NAMES if name != "vit"),
    # a causal mask hides padding on the right from every text
    *((name, "right", no_padding) for name in ("bert", "t5")),
]


@pytest.mark.parametrize(("name", "padding", "mutant"), MUTANTS)
def test_what_is_left_out_shows(hf, monkeypatch, name, padding, mutant):
    model, given = hf.build(name), hf.inputs(name, padding)
    own = hf.output(model, given)
    at.huggingface.temper(model, at.Constant(1.0))

    def wrong(*args, **kwargs):
        case = asked(*args, **kwargs)
        return dataclasses.replace(case, **mutant(case))

    asked = backend.asked
    monkeypatch.setattr(backend, "asked", wrong)
    assert hf.gap(hf.output(model, given), own) > APART


# a second way to double the logits of each of them: its scaling, and its cap, its sinks and its bias where it has them
def doubled(model):
    for module in model.modules():
        for name in ("scaling", "attn_logit_softcapping"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 2 * getattr(module, name))
        for name, p in module.named_parameters(recurse=False):
            if name == "sinks":
                p.data.mul_(2)
        if hasattr(module, "relative_attention_bias"):
            module.relative_attention_bias.weight.data.mul_(2)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_at_temperature_one_half_every_logit_is_doubled(hf, name):
    model, given = hf.build(name), hf.inputs(name, None if name == "vit" else "left")
    plain = hf.output(model, given)
    own = hf.output(doubled(copy.deepcopy(model)), given)
    assert hf.gap(own, plain) > APART
    at.huggingface.temper(model, at.Constant(0.5))
    assert hf.gap(hf.output(model, given), own) < CLOSE


# --- what a call may ask for


def called(model, *args, **kwargs):
    """What attend makes of these arguments, called by the model's first attention module."""
    module = next(m for m in model.modules() if hasattr(m, "num_key_value_groups"))
    return backend.attend(module, *args, **kwargs)[0]


def heads(length, count=4, batch=1):
    return torch.randn(batch, count, length, 8)


def test_grouped_keys_are_not_repeated(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    with hf.heard() as calls:
        hf.output(model, hf.inputs("llama"))
    assert {case.key.shape[1] for _, case in calls} == {2}


def test_an_empty_static_cache_ends_where_the_queries_end(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    query, key, value = heads(5), heads(9, 2), heads(9, 2)
    bias = torch.randn(1, 4, 5, 9)
    for kwargs, own in (({}, {}), ({"position_bias": bias}, {"position_bias": bias[..., :5]})):
        with hf.heard() as calls:
            long = called(model, query, key, value, None, **kwargs)
        assert calls[0][1].keys == 5 and calls[0][1].is_causal
        torch.testing.assert_close(long, called(model, query, key[:, :, :5], value[:, :, :5], None, **own))
    assert long.shape == (1, 5, 4, 8)


def test_layers_that_drop_queries_keep_causality(hf):
    sharing = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": 2 * hf.MIXED["layer_types"]}
    sizes = {"sliding_window": hf.WINDOW, "global_head_dim": 8, "hidden_size_per_layer_input": 8}
    config = tr.Gemma4TextConfig(**hf.GROUPED | sizes | sharing, vocab_size_per_layer_input=61)
    model = hf.enlarged(tr.Gemma4ForCausalLM(config).eval())
    model.set_attn_implementation("eager")

    @torch.no_grad()
    def last_three():
        cache = tr.DynamicCache(config=config)
        return model(**hf.inputs("llama"), logits_to_keep=3, past_key_values=cache).logits

    own = last_three()
    at.huggingface.temper(model, at.Constant(1.0))
    assert hf.gap(last_three(), own) < CLOSE


def test_the_caller_says_what_is_causal_and_one_query_never_is(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    key, value = heads(6, 2), heads(6, 2)
    with hf.heard() as calls:
        called(model, heads(6), key, value, None, is_causal=False)
        called(model, heads(1), key, value, None, is_causal=True)
        called(model, heads(6), key, value, torch.ones(1, 1, 6, 6, dtype=torch.bool), is_causal=True)
        called(model, heads(6), key, value, None)
    assert [case.is_causal for _, case in calls] == [False, False, False, True]


@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, -1e9, -torch.inf])
def test_a_float_mask_hides_what_a_boolean_one_hides(hf, least):
    policy = hf.ByLength()
    model = at.huggingface.temper(hf.build("llama"), policy)
    seen = torch.rand(1, 1, 6, 6) > 0.5
    given = heads(6), heads(6, 2), heads(6, 2)
    hidden = torch.where(seen, 0.0, least)
    torch.testing.assert_close(called(model, *given, hidden), called(model, *given, seen))
    bias = torch.randn(1, 4, 6, 6)
    torch.testing.assert_close(
        called(model, *given, hidden, position_bias=bias), called(model, *given, seen, position_bias=bias)
    )
    assert all(torch.equal(lengths, policy.seen[0]) for lengths in policy.seen)


def test_dropout_only_in_training(hf):
    model = at.huggingface.temper(hf.build("llama", attention_dropout=0.5), at.Constant(1.0))
    given = hf.inputs("llama")
    assert torch.equal(hf.output(model, given), hf.output(model, given))
    model.train()
    with hf.heard() as calls:
        assert hf.gap(hf.output(model, given), hf.output(model, given)) > APART
    assert {case.dropout for _, case in calls} == {0.5}


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "t5"])
def test_gradients_are_those_of_eager_attention(hf, name):
    model, given = hf.build(name), hf.inputs(name, "left")
    own = gradients(model, given)
    at.huggingface.temper(model, at.Constant(1.0))
    ours = gradients(model, given)
    special = {"gpt_oss": "sinks", "t5": "relative_attention_bias"}.get(name, "q_proj")
    assert set(ours) == set(own) and any(special in name for name in own)
    for name, gradient in own.items():
        assert (ours[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-9, name


def gradients(model, given):
    model.zero_grad()
    logits = model(**given, use_cache=False).logits
    if logits.shape[:2] == given["attention_mask"].shape:
        logits = logits[given["attention_mask"].bool()]
    logits.log_softmax(-1)[:, 7].sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# --- packed sequences


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("told_by", ["positions", "lengths", "both"])
def test_packed_sequences_are_those_sequences(hf, name, told_by):
    model = at.huggingface.temper(hf.build(name), hf.ByLength())
    texts = [torch.randint(3, 61, (1, length)) for length in (7, 9, 1, 6)]
    apart = torch.cat([hf.output(model, {"input_ids": text}) for text in texts], 1)
    batch = tr.DataCollatorWithFlattening(return_flash_attn_kwargs=True)(
        [{"input_ids": text[0].tolist()} for text in texts]
    )
    batch.pop("labels")
    if told_by == "positions":
        batch = {name: batch[name] for name in ("input_ids", "position_ids")}
    if told_by == "lengths":
        # a mask that is given keeps transformers from reading the positions
        batch = {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}
    if name == "gpt_oss" and told_by == "positions":
        with pytest.raises(ArgumentError, match="^position_ids: packed sequences with cu_seq_lens_q and cu_seq_lens_k"):
            hf.output(model, batch)
    else:
        assert hf.gap(hf.output(model, batch).reshape(apart.shape), apart) < CLOSE


def test_lengths_beside_a_float_mask(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    given, starts = (heads(6), heads(6, 2), heads(6, 2)), torch.tensor([0, 2, 6], dtype=torch.int32)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    packed = called(model, *given, torch.where(causal, 0.0, -torch.inf), cu_seq_lens_q=starts, cu_seq_lens_k=starts)
    torch.testing.assert_close(packed, called(model, *given, None, cu_seq_lens_k=starts))
    parts = [called(model, *(t[:, :, first:last] for t in given), None) for first, last in ((0, 2), (2, 6))]
    torch.testing.assert_close(packed, torch.cat(parts, 1))


def test_packed_sequences_that_are_refused(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    starts = torch.tensor([0, 2, 6])
    for given in ((heads(6, batch=2), heads(6, 2, 2), heads(6, 2, 2)), (heads(2), heads(6, 2), heads(6, 2))):
        with pytest.raises(ArgumentError, match="^cu_seq_lens_q: self-attention without a cache over one packed row"):
            called(model, *given, None, cu_seq_lens_q=starts)


@pytest.mark.parametrize("name", ["cache", "sinks", "indices", "block_indices"])
def test_what_is_refused_by_name(hf, name):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    with pytest.raises(ArgumentError, match=f"^{name}: .* is accepted, but 'Tensor' came"):
        called(model, heads(6), heads(6, 2), heads(6, 2), None, **{name: torch.zeros(1)})


def test_attention_weights_are_refused(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    with pytest.raises(ArgumentError, match="^output_attentions: output_attentions=False"):
        model(**hf.inputs("llama"), output_attentions=True)
    asking = hf.build("llama")
    asking.config.output_attentions = True
    with pytest.raises(ArgumentError, match="^model: a model with config.output_attentions = False"):
        at.huggingface.temper(asking, at.Constant(1.0))
    assert asking.config._attn_implementation == "eager"


def test_continuous_batching_is_refused(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(1.0))
    with pytest.raises(ValueError, match="attemper is not supported for continuous batching"):
        model.generate_batch([[3, 4, 5]], generation_config=tr.GenerationConfig(max_new_tokens=2))


# --- registering


def test_a_registered_backend_is_plain_softmax(hf, no_default):
    at.huggingface.register()
    at.huggingface.register()
    own = hf.build("llama")
    given = hf.inputs("llama", "left")
    config = copy.deepcopy(own.config)
    model = tr.LlamaForCausalLM._from_config(config, attn_implementation="attemper").eval()
    model.load_state_dict(own.state_dict())
    assert hf.gap(hf.output(model, given), hf.output(own, given)) < CLOSE


def test_the_registered_policy_is_that_of_models_without_their_own(hf, no_default):
    first, second, given = hf.build("llama"), hf.build("llama"), hf.inputs("llama")
    half = hf.output(at.huggingface.temper(first, at.Constant(0.5)), given)
    at.huggingface.register(at.Constant(0.5))
    second.set_attn_implementation("attemper")
    torch.testing.assert_close(hf.output(second, given), half)
    at.huggingface.register(at.Constant(2.0))
    assert hf.gap(hf.output(second, given), half) > APART
    torch.testing.assert_close(hf.output(first, given), half)
    at.huggingface.register()
    second.set_attn_implementation("eager")
    plain = hf.output(second, given)
    second.set_attn_implementation("attemper")
    assert hf.gap(hf.output(second, given), plain) < CLOSE


def test_a_policy_by_layer_needs_a_tempered_model(hf, no_default):
    at.huggingface.register(at.PerHead({(0, None): at.Constant(0.5), (1, None): at.Constant(1.0)}))
    model = hf.build("llama")
    model.set_attn_implementation("attemper")
    with pytest.raises(ArgumentError, match="^policy: one policy for all layers .* but 'PerHead in a call from Llama"):
        hf.output(model, hf.inputs("llama"))


def test_without_transformers_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for call in (lambda: at.huggingface.register(), lambda: at.huggingface.temper(nn.Linear(1, 1), at.Constant(1.0))):
        with pytest.raises(MissingExtraError, match=r"pip install 'attemper\[transformers\]'"):
            call()


# --- tempering, and back


def test_each_head_has_its_own_temperature(hf):
    model, given = hf.build("gpt2"), hf.inputs("gpt2")
    expected = hf.build("gpt2")
    with torch.no_grad():
        # GPT-2's queries are the first third of c_attn; the second layer's third head
        expected.transformer.h[1].attn.c_attn.weight[:, 16:24] *= 4
        expected.transformer.h[1].attn.c_attn.bias[16:24] *= 4
    at.huggingface.temper(model, at.PerHead({(1, 2): at.Constant(0.25)}))
    assert hf.gap(hf.output(model, given), hf.output(expected, given)) < CLOSE
    assert hf.gap(hf.output(model, given), hf.output(hf.build("gpt2"), given)) > APART


def implementations(model):
    return {name: m.config._attn_implementation for name, m in model.named_modules() if hasattr(m, "config")}


@pytest.mark.parametrize("name", ["gemma2", "t5", "vit"])
def test_untemper_restores_what_the_model_had(hf, name):
    model, given = hf.build(name), hf.inputs(name)
    if name == "t5":
        model.decoder.set_attn_implementation("sdpa")
    before, own = implementations(model), hf.output(model, given)
    weights = model.state_dict()
    assert at.huggingface.temper(model, at.Constant(0.5)) is model
    assert set(implementations(model).values()) == {"attemper"}
    half = hf.output(model, given)
    at.huggingface.temper(model, at.Constant(0.25))
    assert min(hf.gap(half, own), hf.gap(hf.output(model, given), half)) > APART
    assert model.state_dict().keys() == weights.keys()
    assert at.huggingface.untemper(model) is model
    assert implementations(model) == before
    assert torch.equal(hf.output(model, given), own)
    assert not any("attemper" in name for m in model.modules() for name in vars(m))
    at.huggingface.untemper(model)
    assert implementations(model) == before


def test_what_the_user_chose_meanwhile_stays(hf):
    model = at.huggingface.temper(hf.build("llama"), at.Constant(0.5))
    model.set_attn_implementation("sdpa")
    assert at.huggingface.untemper(model).config._attn_implementation == "sdpa"
    at.huggingface.temper(model, at.Constant(0.5))
    assert at.huggingface.untemper(model).config._attn_implementation == "sdpa"


def test_a_part_and_the_whole(hf):
    model, given = hf.build("llama"), hf.inputs("llama")
    own = hf.output(model, given)
    at.huggingface.temper(model.model, at.Constant(0.5))
    half = hf.output(model, given)
    at.huggingface.temper(model, at.Constant(0.25))
    at.huggingface.untemper(model)
    assert model.config._attn_implementation == "eager" and torch.equal(hf.output(model, given), own)
    at.huggingface.temper(model, at.Constant(0.5))
    assert torch.equal(hf.output(model, given), half)
    at.huggingface.untemper(model.model)
    assert hf.gap(hf.output(model, given), own) < CLOSE
    at.huggingface.untemper(model)
    assert model.config._attn_implementation == "eager"


def test_two_models_of_one_configuration(hf):
    first = hf.build("llama")
    second = tr.LlamaForCausalLM(first.config).eval()
    second.load_state_dict(first.state_dict())
    given, own = hf.inputs("llama"), hf.output(first, hf.inputs("llama"))
    at.huggingface.temper(first, at.Constant(0.5))
    assert hf.gap(hf.output(second, given), own) < CLOSE
    at.huggingface.temper(second, at.Constant(0.25))
    quarter = hf.output(second, given)
    at.huggingface.untemper(first)
    assert torch.equal(hf.output(second, given), quarter)
    assert hf.gap(hf.output(first, given), own) < CLOSE
    at.huggingface.untemper(second)
    assert second.config._attn_implementation == "eager" and torch.equal(hf.output(second, given), own)


def test_a_copy_keeps_the_policy_and_is_restored_by_itself(hf):
    model, given = hf.build("t5"), hf.inputs("t5")
    own = hf.output(model, given)
    half = hf.output(at.huggingface.temper(model, at.Constant(0.5)), given)
    twin = copy.deepcopy(model)
    at.huggingface.untemper(model)
    assert torch.equal(hf.output(twin, given), half)
    assert torch.equal(hf.output(model, given), own)
    at.huggingface.untemper(twin)
    assert torch.equal(hf.output(twin, given), own)
    assert set(implementations(twin).values()) == {"eager"}


def test_a_composite_model(hf):
    text = hf.build("llama").config.to_dict()
    vision = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = tr.LlavaConfig(
        text_config=tr.LlamaConfig(**text),
        vision_config=tr.CLIPVisionConfig(**vision, image_size=16, patch_size=8),
        image_token_index=60,
        vision_feature_layer=-1,
    )
    model = hf.enlarged(tr.LlavaForConditionalGeneration(config).eval())
    model.set_attn_implementation({"": "eager", "text_config": "eager", "vision_config": "sdpa"})
    ids = torch.cat([torch.full((1, 4), 60), torch.randint(3, 60, (1, 6))], 1)
    given = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 16, 16), "attention_mask": torch.ones_like(ids)}
    before, own = implementations(model), hf.output(model, given)
    at.huggingface.temper(model, at.Constant(1.0))
    with hf.heard() as calls:
        assert hf.gap(hf.output(model, given), own) < CLOSE
    assert len(calls) == 3
    at.huggingface.temper(model, at.PerHead({(0, None): at.Constant(0.5)}))
    assert hf.gap(hf.output(model, given), own) > 1e-3
    at.huggingface.untemper(model)
    assert implementations(model) == before and "sdpa" in before.values()
    assert torch.equal(hf.output(model, given), own)


def test_what_is_saved_loads_anywhere(hf, tmp_path):
    model, given = hf.build("gemma2"), hf.inputs("gemma2")
    own = hf.output(model, given)
    at.huggingface.temper(model, at.Constant(0.5)).save_pretrained(tmp_path)
    assert "attemper" not in (tmp_path / "config.json").read_text()
    again = tr.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert torch.equal(hf.output(again, given), own)
    assert tr.AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation != "attemper"


def test_models_that_cannot_be_tempered(hf):
    for model in (nn.Linear(2, 2), "llama"):
        with pytest.raises(
            ArgumentError, match=r"^model: a model of transformers \(for other models there is `with at"
        ):
            at.huggingface.temper(model, at.Constant(0.5))
    bloom = tr.BloomForCausalLM(tr.BloomConfig(vocab_size=31, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(
        ArgumentError, match=r"^model: .* AttentionInterface \(for other .* but 'BloomForCausalLM' came"
    ):
        at.huggingface.temper(bloom, at.Constant(0.5))
    assert bloom.config._attn_implementation != "attemper"
    rnn = tr.MambaModel(tr.MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ArgumentError, match="^model: a model with attention that goes through"):
        at.huggingface.temper(rnn, at.Constant(0.5))
    for policy in (0.5, None):
        with pytest.raises(ArgumentError, match="^policy: a policy, such as at.Adaptive"):
            at.huggingface.temper(hf.build("llama"), policy)


def test_attention_that_stays_as_it_is_is_named(hf):
    model = hf.build("llama")
    model.model.layers[0].extra = nn.MultiheadAttention(8, 2)
    with pytest.warns(UserWarning, match=r"^not tempered, .*: model\.layers\.0\.extra$"):
        at.huggingface.temper(model, at.Constant(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in NAMES:
            at.huggingface.temper(hf.build(name), at.Constant(0.5))


def test_a_tempered_model_keeps_its_policy_inside_another(hf):
    model, given = hf.build("llama"), hf.inputs("llama")
    half = hf.output(at.huggingface.temper(model, at.Constant(0.5)), given)
    with at.tempering(at.Constant(0.125)), at.watching(model) as record:
        assert hf.gap(hf.output(model, given), half) < CLOSE
    frame = record.to_frame()
    # two layers of four heads, each once
    assert sorted(frame["layer"]) == sorted(4 * [f"model.layers.{i}.self_attn" for i in range(2)])


def test_a_registered_model_is_reached_from_outside(hf, no_default):
    at.huggingface.register()
    model, given = hf.build("gemma2"), hf.inputs("gemma2")
    half = hf.output(at.huggingface.temper(model, at.Constant(0.5)), given)
    at.huggingface.untemper(model).set_attn_implementation("attemper")
    with at.tempering(at.Constant(0.5)):
        torch.testing.assert_close(hf.output(model, given), half)


@pytest.mark.parametrize("policy", [at.Constant(0.5), at.Adaptive()])
def test_it_compiles_whole(hf, policy):
    model, given = hf.build("llama"), hf.inputs("llama")
    at.huggingface.temper(model, policy)
    expected = hf.output(model, given)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert hf.gap(hf.output(compiled, given), expected) < CLOSE


def test_packed_positions_that_no_mask_parts_are_refused_when_compiled_too(hf):
    model = at.huggingface.temper(hf.build("gpt_oss"), at.Constant(1.0))
    ids = torch.randint(3, 61, (1, 10))
    positions = torch.tensor([[*range(6), *range(4)]])
    with pytest.raises(ArgumentError, match="^position_ids: packed sequences"):
        model(input_ids=ids, position_ids=positions, use_cache=False)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    whole = torch.arange(10)[None]
    expected = model(input_ids=ids, position_ids=whole, use_cache=False).logits
    torch.testing.assert_close(compiled(input_ids=ids, position_ids=whole, use_cache=False).logits, expected)
    with pytest.raises(RuntimeError, match="position_ids: packed sequences"):
        compiled(input_ids=ids, position_ids=positions, use_cache=False)
    torch._dynamo.reset()
    # read again where they changed in place
    whole.copy_(positions)
    with pytest.raises(ArgumentError, match="^position_ids: packed sequences"):
        model(input_ids=ids, position_ids=whole, use_cache=False)


def test_a_policy_for_a_layer_or_a_head_that_is_not_there_is_refused(hf):
    model, given = hf.build("llama"), hf.inputs("llama")
    with pytest.raises(
        ArgumentError, match="^policy: a layer from 0 to 1 of this model is accepted, but 'one for layer 99'"
    ):
        at.huggingface.temper(model, at.PerHead({(99, 0): at.Constant(0.5)}))
    with (
        pytest.raises(ArgumentError, match="a layer from 0 to 1"),
        at.tempering(at.PerHead({(2, None): at.Constant(0.5)}), model),
    ):
        pass
    at.huggingface.temper(model, at.PerHead({(1, 4): at.Constant(0.5)}))
    with pytest.raises(
        ArgumentError, match="^policy: a head from 0 to 3 of this layer is accepted, but 'one for head 4'"
    ):
        model(**given)


def test_tempering_a_model_that_runs_eager_warns(hf):
    model = hf.build("llama")
    says = "runs the eager attention of transformers.*at.huggingface.temper"
    with pytest.warns(UserWarning, match=says), at.tempering(at.Constant(0.5), model):
        pass


@pytest.mark.parametrize("wrong", [at.EntropyTarget, "nonsense", 0.5])
def test_what_is_no_policy_is_refused_at_once(wrong, hf, no_default):
    with pytest.raises(ArgumentError, match="^policy: a policy, such as"):
        at.huggingface.temper(hf.build("llama"), wrong)
    with pytest.raises(ArgumentError, match="^policy: a policy, such as"):
        at.huggingface.register(wrong)
