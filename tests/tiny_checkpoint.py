"""A tiny random Dream as its authors publish it: safetensors with transformers' names, and a byte-level BPE."""

import json

import tiny_masked
from safetensors.numpy import save

_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def published():
    """The files of the checkpoint by name, with Python files that end the process when they are executed."""
    tiny = tiny_masked.make("dream")
    specials = tiny_masked.SPECIALS
    config = {
        "architectures": ["DreamModel"],
        "auto_map": {"AutoModel": "modeling.DreamModel", "AutoConfig": "modeling.Config"},
        "model_type": "Dream",
        "mask_token_id": 0,
        "hidden_size": tiny.width,
        "intermediate_size": tiny.hidden,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "max_position_embeddings": tiny.trained_length,
        "rms_norm_eps": tiny_masked.EPSILON,
        "rope_theta": tiny_masked.ROPE_BASE,
        "vocab_size": len(tiny_masked.TOKENS),
        "tie_word_embeddings": False,
        "bos_token_id": tiny_masked.START,
        "eos_token_id": tiny_masked.END,
    }
    added = {str(i): {"content": token, "special": True} for i, token in enumerate(specials)}
    tokenizer = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization.DreamTokenizer", None]},
        "added_tokens_decoder": added,
        "bos_token": specials[tiny_masked.START],
        "eos_token": specials[tiny_masked.END],
        "mask_token": specials[tiny_masked.MASK],
        "unk_token": None,
        "pad_token": None,
    }
    vocabulary = {token: i for i, token in enumerate(tiny_masked.TOKENS)}
    merges = (" ".join(pair) for pair in tiny_masked.MERGES)
    return {
        "vocab.json": json.dumps(vocabulary).encode(),
        "merges.txt": "\n".join(("#version: 0.2", *merges, "")).encode(),
        "config.json": json.dumps(config).encode(),
        "tokenizer_config.json": json.dumps(tokenizer).encode(),
        "modeling.py": b"raise SystemExit('executed')\n",
        "tokenization.py": b"raise SystemExit('executed')\n",
        "model.safetensors": save({_name(name): values for name, values in tiny.tensors.items()}, {"format": "pt"}),
    }


def _name(name):
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"
