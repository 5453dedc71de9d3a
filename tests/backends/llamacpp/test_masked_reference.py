"""The numpy models of tiny_masked compute what transformers computes of the same weights."""

import numpy as np
import pytest
import tiny_masked
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

IDS = np.random.default_rng(0).integers(0, len(tiny_masked.TOKENS), 30)
KINDS = {
    "dream": (Qwen2Config, Qwen2ForCausalLM),
    "rnd1": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "llada-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "llada": (LlamaConfig, LlamaForCausalLM),
}
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def config_of(tiny, kind):
    sizes = {
        "vocab_size": len(tiny_masked.TOKENS),
        "hidden_size": tiny.width,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "intermediate_size": tiny.hidden,
        "rms_norm_eps": tiny_masked.EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": tiny_masked.ROPE_BASE},
        "attn_implementation": "eager",
        "tie_word_embeddings": False,
    }
    if kind is Qwen3MoeConfig:
        sizes |= {"num_experts": tiny.experts, "num_experts_per_tok": tiny.used_experts, "head_dim": tiny.head_width}
        sizes |= {"moe_intermediate_size": tiny.hidden, "norm_topk_prob": tiny.architecture == "rnd1"}
    return kind(**sizes)


def neighbours_apart(weight, num_heads):
    """LLaMA's files have rotated pairs as neighbours, transformers in two halves."""
    rows = weight.reshape(num_heads, -1, 2, weight.shape[1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def state_of(tiny):
    state, experts = {}, {}
    for key, value in tiny.tensors.items():
        name, _, kind = key.rpartition(".")
        if name in OUTSIDE:
            state[f"{OUTSIDE[name]}.{kind}"] = value
            continue
        _, layer, part = name.split(".")
        if part.endswith("_exps"):
            experts.setdefault(layer, {})[part] = value
            continue
        heads = {"attn_q": tiny.heads, "attn_k": tiny.kv_heads}.get(part) if tiny.architecture == "llada" else None
        state[f"model.layers.{layer}.{NAMES[part]}.{kind}"] = neighbours_apart(value, heads) if heads else value
    for layer, parts in experts.items():
        prefix = f"model.layers.{layer}.mlp.experts"
        state[f"{prefix}.gate_up_proj"] = np.concatenate([parts["ffn_gate_exps"], parts["ffn_up_exps"]], axis=1)
        state[f"{prefix}.down_proj"] = parts["ffn_down_exps"]
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state.items()}


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("num_causal", [0, 12])
def test_numpy_computes_what_transformers_computes(architecture, num_causal):
    tiny = tiny_masked.make(architecture, kv_heads=4 if architecture == "llada-moe" else 2)
    config, kind = KINDS[architecture]
    model = kind(config_of(tiny, config)).eval()
    missing, unexpected = model.load_state_dict(state_of(tiny), strict=False)
    assert not unexpected
    assert not missing
    seen = torch.ones(len(IDS), len(IDS), dtype=torch.bool)
    seen[:num_causal] = torch.ones_like(seen).tril()[:num_causal]
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        theirs = model(torch.from_numpy(IDS)[None], attention_mask=mask).logits[0].numpy()
    np.testing.assert_allclose(tiny_masked.logits(tiny, IDS, num_causal), theirs, atol=2e-4)
