import pytest
import torch
import transformers as tr

import attemper as at

DECODERS = ("llama", "gpt2", "gemma2", "gemma3", "qwen3", "mistral", "gpt_oss")
NEW = 8


def generated(model, given, **options):
    """Eight tokens, the likeliest each time, after every prompt, and the scores they were chosen by."""
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, **options}
    found = model.generate(**given, min_new_tokens=NEW, max_new_tokens=NEW, **options)
    return found.sequences, torch.stack(found.logits, 1)


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
@pytest.mark.parametrize("name", [*DECODERS, "t5"])
def test_a_model_at_temperature_one_writes_what_its_own_attention_writes(hf, name, cache):
    model, given = hf.build(name), hf.inputs(name, "left")
    given.pop("decoder_input_ids", None)
    options = {"use_cache": False} if cache == "none" else {"cache_implementation": cache}
    tokens, scores = generated(model, given, **options)
    at.huggingface.temper(model, at.Constant(1.0))
    with hf.heard() as calls:
        ours, our_scores = generated(model, given, **options)
    assert torch.equal(ours, tokens)
    assert hf.gap(our_scores, scores) < 1e-4
    assert min(case.queries for _, case in calls) == (1 if cache != "none" or name == "t5" else 14)


POLICIES = {"LogLength": at.LogLength(4), "Adaptive": at.Adaptive(), "Llama4": at.Llama4(4, 0.5)}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_a_cache_changes_nothing_that_a_policy_sees(hf, name, policy, cache):
    model, given = hf.build(name), hf.inputs(name, "left")
    plain = generated(model, given)[1]
    at.huggingface.temper(model, POLICIES[policy])
    tokens, scores = generated(model, given, cache_implementation=cache)
    again, recomputed = generated(model, given, use_cache=False)
    assert torch.equal(tokens, again)
    assert hf.gap(scores, recomputed) < 1e-4
    assert hf.gap(scores, plain) > 0.01
    # the second text by itself, without its padding
    alone = generated(model, {"input_ids": given["input_ids"][1:, 5:]})
    assert torch.equal(alone[0][0, 9:], tokens[1, 14:])
    assert hf.gap(alone[1][0], scores[1]) < 1e-4


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_keys_counted_are_the_keys_seen(hf, name, cache):
    policy = hf.ByLength()
    model, given = at.huggingface.temper(hf.build(name), policy), hf.inputs(name, "left")
    generated(model, given, cache_implementation=cache)
    layers = 2
    most = hf.WINDOW if name == "mistral" else 99
    first = policy.seen[0][:, 0]
    assert first[0].tolist() == [min(i + 1, most) for i in range(14)]
    # five places of padding, then nine of text
    assert first[1, 5:].tolist() == [min(i + 1, most) for i in range(9)]
    for step, lengths in enumerate(policy.seen[layers::layers], 1):
        assert lengths.shape == (2, 4, 1)
        assert lengths[:, 0, 0].tolist() == [min(14 + step, most), min(9 + step, most)]
    assert len(policy.seen) == layers * NEW


def test_beams_and_samples_run(hf):
    model, given = at.huggingface.temper(hf.build("llama"), at.LogLength(4)), hf.inputs("llama", "left")
    beams = model.generate(**given, num_beams=3, max_new_tokens=4, do_sample=False)
    exact = model.generate(**given, num_beams=3, max_new_tokens=4, do_sample=False, use_cache=False)
    assert torch.equal(beams, exact)
    torch.manual_seed(3)
    sampled = model.generate(**given, do_sample=True, max_new_tokens=4, min_new_tokens=4)
    assert sampled.shape == (2, 18)


@torch.no_grad()
def test_decoding_compiles_whole(hf):
    model, given = at.huggingface.temper(hf.build("llama"), at.LogLength(4)), hf.inputs("llama", "left")
    mask = torch.cat([given["attention_mask"], torch.ones(2, 1, dtype=torch.long)], 1)
    scores = []
    for step in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        cache = tr.StaticCache(model.config, max_cache_len=20)
        model(**given, past_key_values=cache)
        scores.append(step(torch.full((2, 1), 7), attention_mask=mask, past_key_values=cache).logits)
    assert hf.gap(scores[1], scores[0]) < 1e-5
