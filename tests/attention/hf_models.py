"""Small random models of transformers whose attention logits are large, so that what attention leaves out shows."""

import dataclasses
from contextlib import contextmanager

import torch
import transformers as tr

from attemper.attention import backend
from attemper.attention.routes import reference

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = 5
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


def llama(**own):
    return tr.LlamaForCausalLM(tr.LlamaConfig(**GROUPED | own))


def gpt2(**own):
    sizes = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0}
    return tr.GPT2LMHeadModel(tr.GPT2Config(**sizes | {"bos_token_id": 1, "eos_token_id": 2} | own))


def bert(**own):
    return tr.BertModel(tr.BertConfig(**SIZES | own), add_pooling_layer=False)


def t5(**own):
    sizes = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    return tr.T5ForConditionalGeneration(tr.T5Config(**sizes | special | own))


def gemma2(**own):
    own = MIXED | {"attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 8} | own
    return tr.Gemma2ForCausalLM(tr.Gemma2Config(**GROUPED | own))


def gemma3(**own):
    return tr.Gemma3ForCausalLM(tr.Gemma3TextConfig(**GROUPED | MIXED | {"query_pre_attn_scalar": 8} | own))


def qwen2(**own):
    return tr.Qwen2ForCausalLM(tr.Qwen2Config(**SIZES | {"num_key_value_heads": 2} | own))


def qwen3(**own):
    return tr.Qwen3ForCausalLM(tr.Qwen3Config(**GROUPED | own))


def mistral(**own):
    return tr.MistralForCausalLM(tr.MistralConfig(**GROUPED | {"sliding_window": WINDOW} | own))


def vit(**own):
    sizes = {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    image = {"num_attention_heads": 4, "image_size": 16, "patch_size": 4, "num_channels": 3}
    return tr.ViTModel(tr.ViTConfig(**sizes | image | own), add_pooling_layer=False)


def gpt_oss(**own):
    experts = {
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
    return tr.GptOssForCausalLM(tr.GptOssConfig(**GROUPED | MIXED | experts | own))


def phi3(**own):
    return tr.Phi3ForCausalLM(tr.Phi3Config(**SIZES | {"num_key_value_heads": 2} | own))


def gpt_neox(**own):
    return tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**SIZES | own))


def olmo2(**own):
    return tr.Olmo2ForCausalLM(tr.Olmo2Config(**SIZES | {"num_key_value_heads": 2} | own))


BUILDERS = {
    build.__name__: build
    for build in (llama, gpt2, bert, t5, gemma2, gemma3, qwen2, qwen3, mistral, vit, gpt_oss, phi3, gpt_neox, olmo2)
}


def build(name, **own):
    """In float32, in eval mode, eager."""
    torch.manual_seed(0)
    model = BUILDERS[name](**own).eval()
    model.set_attn_implementation("eager")
    return enlarged(model)


@torch.no_grad()
def enlarged(model):
    for name, p in model.named_parameters():
        last = name.split(".")[-2]
        if "relative_attention_bias" in name or "sinks" in name or "embed" in name or last in ("wte", "wpe", "shared"):
            p.normal_()
        elif p.ndim > 1:
            p.normal_(0, 2 * p.shape[-1] ** -0.5)
        elif "bias" in name:
            p.normal_(0, 0.3)
        elif "q_norm" in name or "k_norm" in name:
            p.add_(0.5 + 0.2 * torch.randn_like(p))
    return model


def inputs(name, padding=None, length=14):
    """Of two texts the second one is five shorter where there is padding."""
    random = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=random)}
    ids = torch.randint(3, 61, (2, length), generator=random)
    given = {"input_ids": ids}
    if padding is not None:
        mask = torch.ones_like(ids)
        mask[1, : 5 if padding == "left" else None] = 0
        if padding == "right":
            mask[1] = 1
            mask[1, -5:] = 0
        given |= {"input_ids": ids.where(mask.bool(), 0), "attention_mask": mask}
    if name == "t5":
        given["decoder_input_ids"] = torch.randint(3, 61, (2, 9), generator=random)
    return given


@torch.no_grad()
def output(model, given):
    """The logits, or else the last hidden state; without the places that are padding."""
    found = model(**given, use_cache=False) if "input_ids" in given else model(**given)
    values = found.logits if "logits" in found else found.last_hidden_state
    if "attention_mask" not in given or "decoder_input_ids" in given:
        return values
    return values[given["attention_mask"].bool()]


def gap(one, other):
    """The largest difference, in standard deviations of the second."""
    return ((one - other).abs().max() / other.std()).item()


@contextmanager
def heard():
    """Every (module, case) that reaches the backend."""
    calls = []
    listener = lambda module, case: calls.append((module, case))  # noqa: E731
    backend.listeners.append(listener)
    try:
        yield calls
    finally:
        backend.listeners.remove(listener)


def spread(case):
    """The standard deviation of the logits that are seen, before cap and bias."""
    bare = reference.logits(dataclasses.replace(case, softcap=None, bias=None))
    return bare[case.visible(0, case.queries).expand_as(bare)].std().item()


class ByLength:
    """Its own copy of a policy that depends on the number of visible keys, written for reading."""

    needs = ("length",)

    def __init__(self):
        self.seen = []

    def inverse_temperature(self, rows):
        self.seen.append(rows.length)
        return 1 + rows.length.clamp(min=1).log()
