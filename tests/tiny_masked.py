"""Tiny random models: GGUF files of llama.cpp's architectures, and the same computation in numpy, both in float32."""

from dataclasses import dataclass, field

import gguf
import numpy as np
from margins import check_logits

MASK, END, EXPAND, DELETE, START = range(5)
SPECIALS = ("<|mask|>", "<|end|>", "<|expand|>", "<|delete|>", "<|start|>")
ARCHITECTURES = ("dream", "llada", "llada-moe", "rnd1")
SHIFTED = ("dream", "rnd1", "qwen2")
NEIGHBOURS = ("llada", "llama", "mistral3")
MERGES = (("s", "e"), ("se", "l"), ("sel", "f"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("e", "r"), ("i", "n"))
EPSILON = 1e-6
ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class Tiny:
    architecture: str
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 4
    hidden: int = 96
    experts: int = 4
    used_experts: int = 2
    trained_length: int = 2048
    seed: int = 0
    tensors: dict = field(default_factory=dict, compare=False)

    @property
    def is_mixture(self):
        return self.architecture in ("llada-moe", "rnd1", "qwen3moe")

    @property
    def has_head_norms(self):
        return self.is_mixture or self.architecture == "qwen3"

    @property
    def is_shifted(self):
        return self.architecture in SHIFTED

    @property
    def head_width(self):
        return self.width // self.heads


def letters():
    """GPT-2's printable characters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(extra)) for byte in range(256)]


TOKENS = (*SPECIALS, *letters(), *("".join(pair) for pair in MERGES))


def make(architecture, **sizes):
    tiny = Tiny(architecture, **sizes)
    rng = np.random.default_rng(tiny.seed)

    def random(name, *shape, scale=None):
        values = rng.standard_normal(shape, np.float32) * np.float32(scale or 2 / np.sqrt(shape[-1]))
        tiny.tensors[f"{name}.weight"] = values

    def near_one(name, size):
        tiny.tensors[f"{name}.weight"] = 1 + 0.2 * rng.standard_normal(size, np.float32)

    kv_width = tiny.kv_heads * tiny.head_width
    random("token_embd", len(TOKENS), tiny.width, scale=0.5)
    random("output", len(TOKENS), tiny.width, scale=0.4)
    near_one("output_norm", tiny.width)
    for layer in range(tiny.layers):
        block = f"blk.{layer}"
        near_one(f"{block}.attn_norm", tiny.width)
        near_one(f"{block}.ffn_norm", tiny.width)
        for name, rows in (("q", tiny.width), ("k", kv_width), ("v", kv_width)):
            random(f"{block}.attn_{name}", rows, tiny.width)
            if tiny.architecture in ("dream", "qwen2"):
                tiny.tensors[f"{block}.attn_{name}.bias"] = rng.standard_normal(rows, np.float32)
        random(f"{block}.attn_output", tiny.width, tiny.width)
        if tiny.has_head_norms:
            near_one(f"{block}.attn_q_norm", tiny.head_width)
            near_one(f"{block}.attn_k_norm", tiny.head_width)
        if tiny.is_mixture:
            random(f"{block}.ffn_gate_inp", tiny.experts, tiny.width)
        suffix, many = ("_exps", (tiny.experts,)) if tiny.is_mixture else ("", ())
        random(f"{block}.ffn_gate{suffix}", *many, tiny.hidden, tiny.width)
        random(f"{block}.ffn_up{suffix}", *many, tiny.hidden, tiny.width)
        random(f"{block}.ffn_down{suffix}", *many, tiny.width, tiny.hidden)
    return tiny


def masked(architecture):
    """The masked diffusion model of an architecture."""
    return make(architecture, kv_heads=4 if architecture == "llada-moe" else 2)


def write(path, tiny, *, architecture="", name="", tokens=TOKENS, mask_id=MASK, add_start=False, fim_ids=None, parts=1):
    """Writes the GGUF file with the metadata of llama.cpp's own converter."""
    out = gguf.GGUFWriter(path, architecture or tiny.architecture)
    out.add_name(name or f"tiny {tiny.architecture}")
    out.add_uint16("split.count", parts)
    out.add_context_length(tiny.trained_length)
    out.add_embedding_length(tiny.width)
    out.add_block_count(tiny.layers)
    out.add_feed_forward_length(tiny.hidden)
    out.add_head_count(tiny.heads)
    out.add_head_count_kv(tiny.kv_heads)
    out.add_layer_norm_rms_eps(EPSILON)
    out.add_rope_freq_base(ROPE_BASE)
    if tiny.is_mixture:
        out.add_expert_count(tiny.experts)
        out.add_expert_used_count(tiny.used_experts)
        out.add_expert_feed_forward_length(tiny.hidden)
    if tiny.has_head_norms:
        out.add_key_length(tiny.head_width)
        out.add_value_length(tiny.head_width)
    if tiny.architecture in ARCHITECTURES:
        out.add_causal_attention(False)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIALS))
    out.add_token_types(kinds)
    out.add_token_merges([" ".join(pair) for pair in MERGES])
    out.add_bos_token_id(START)
    out.add_eos_token_id(END)
    out.add_add_bos_token(add_start or tiny.architecture == "llada")
    for key, token in (fim_ids or {}).items():
        out.add_uint32(f"tokenizer.ggml.fim_{key}_token_id", token)
    if mask_id is not None:
        out.add_mask_token_id(mask_id)
    for key, values in tiny.tensors.items():
        out.add_tensor(key, values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def logits(tiny, ids, num_causal=0, block_length=0):
    """Logits at each position, shape (N, V); the first `num_causal` positions attend only to earlier ones.

    With `block_length`, a position attends to its own block and to earlier ones.
    """
    states = tiny.tensors["token_embd.weight"][np.asarray(ids)]
    seen = np.ones((len(ids), len(ids)), bool)
    seen[:num_causal] = np.tri(len(ids), dtype=bool)[:num_causal]
    if block_length:
        blocks = np.arange(len(ids)) // block_length
        seen = blocks[:, None] >= blocks
    for layer in range(tiny.layers):
        weights = {
            key.removeprefix(f"blk.{layer}."): value
            for key, value in tiny.tensors.items()
            if key.startswith(f"blk.{layer}.")
        }
        states = states + _attention(tiny, weights, _norm(states, weights["attn_norm.weight"]), seen)
        mixed = _mixture if "ffn_gate_inp.weight" in weights else _feed_forward
        states = states + mixed(tiny, weights, _norm(states, weights["ffn_norm.weight"]))
    return _norm(states, tiny.tensors["output_norm.weight"]) @ tiny.tensors["output.weight"].T


def check(prediction, tiny, prompt, canvas, banned_ids, atol, num_causal=0, block_length=0):
    """Compares a prediction with numpy's; tokens other than masks predict themselves."""
    is_open = np.asarray(canvas) == MASK
    rows = np.arange(len(prompt), len(prompt) + len(canvas)) - tiny.is_shifted
    expected = logits(tiny, [*prompt, *canvas], num_causal, block_length)[np.maximum(rows, 0)]
    expected[:, list(banned_ids)] = -np.inf
    held = np.flatnonzero(~is_open)
    expected[held] = -np.inf
    expected[held, np.asarray(canvas)[held]] = 0
    check_logits(prediction, expected, atol)


def softmax(values):
    weights = np.exp(values - values.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _norm(states, scale):
    return states / np.sqrt((states**2).mean(-1, keepdims=True) + EPSILON) * scale


def _attention(tiny, weights, states, seen):
    def heads(name, count):
        made = states @ weights[f"attn_{name}.weight"].T + weights.get(f"attn_{name}.bias", np.float32(0))
        return made.reshape(len(states), count, tiny.head_width)

    queries, keys, values = heads("q", tiny.heads), heads("k", tiny.kv_heads), heads("v", tiny.kv_heads)
    if tiny.has_head_norms:
        queries, keys = _norm(queries, weights["attn_q_norm.weight"]), _norm(keys, weights["attn_k_norm.weight"])
    queries, keys = _rotated(tiny, queries), _rotated(tiny, keys)
    keys, values = (np.repeat(each, tiny.heads // tiny.kv_heads, axis=1) for each in (keys, values))
    scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(tiny.head_width)
    mixed = np.einsum("hqk,khd->qhd", softmax(np.where(seen, scores, -np.inf)), values)
    return mixed.reshape(len(states), -1) @ weights["attn_output.weight"].T


def _rotated(tiny, vectors):
    """Files of LLaMA's kind rotate neighbours; the others rotate the two halves of a head."""
    half = tiny.head_width // 2
    angles = np.arange(len(vectors))[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    cosine, sine = (made[:, None].astype(np.float32) for made in (np.cos(angles), np.sin(angles)))
    pairs = slice(0, None, 2), slice(1, None, 2)
    first, second = pairs if tiny.architecture in NEIGHBOURS else (slice(0, half), slice(half, 2 * half))
    turned = vectors.copy()
    turned[..., first] = vectors[..., first] * cosine - vectors[..., second] * sine
    turned[..., second] = vectors[..., first] * sine + vectors[..., second] * cosine
    return turned


def _feed_forward(_tiny, weights, states):
    gate = states @ weights["ffn_gate.weight"].T
    return (gate / (1 + np.exp(-gate)) * (states @ weights["ffn_up.weight"].T)) @ weights["ffn_down.weight"].T


def _mixture(tiny, weights, states):
    """All divide the probabilities of the chosen experts by their sum, but LLaDA-MoE."""
    chances = softmax(states @ weights["ffn_gate_inp.weight"].T)
    made = np.zeros_like(states)
    for row, state in enumerate(states):
        chosen = np.argsort(-chances[row])[: tiny.used_experts]
        total = 1 if tiny.architecture == "llada-moe" else chances[row, chosen].sum()
        for number in chosen:
            parts = ("ffn_gate", "ffn_up", "ffn_down")
            expert = {f"{part}.weight": weights[f"{part}_exps.weight"][number] for part in parts}
            made[row] += chances[row, number] / total * _feed_forward(tiny, expert, state)
    return made
