"""Tiny random GGUFs with a real byte-level vocabulary, and denoisers over them."""

from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel
from dg_lsp.canvas.spec import FimTokens, MaskSampling, ModelSpec, UniformSampling
from dg_lsp.settings import RuntimeSettings

SPECIALS = ("<|mask|>", "<|end|>", "<|prefix|>", "<|suffix|>", "<|middle|>")
MERGES = (("s", "e"), ("se", "l"), ("sel", "f"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("e", "r"), ("i", "n"))


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    width: int = 64
    heads: int = 2
    feed_forward: int = 128
    vocab_size: int = 0  # 0: just what the byte-level vocabulary needs
    trained_length: int = 2048


def byte_letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + extra)
            extra += 1
    return [letters[byte] for byte in range(256)]


def vocabulary(size: int = 0) -> tuple[list[str], list[int]]:
    tokens = [*SPECIALS, *byte_letters(), *("".join(pair) for pair in MERGES)]
    kinds = [gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIALS))
    filler = max(0, size - len(tokens))
    tokens += [f"filler{number}" for number in range(filler)]
    return tokens, [*kinds, *[gguf.TokenType.NORMAL] * filler]


def write(
    path: Path,
    shape: Shape = Shape(),
    *,
    architecture: str = "qwen3",
    seed: int = 0,
    poison: bool = False,
    biases: bool = False,
    stock: str = "",
) -> Path:
    """`stock` is a causal model that knows nothing of dg-lsp: with `fim` tokens, or `plain`."""
    rng = np.random.default_rng(seed)
    tokens, kinds = vocabulary(shape.vocab_size)
    # llama.cpp knows sentinels by their usual spellings, too
    tokens[2:5] = ["<|a|>", "<|b|>", "<|c|>"] if stock == "plain" else tokens[2:5]
    head = shape.width // shape.heads
    out = gguf.GGUFWriter(path, architecture)
    out.add_name("tiny")
    out.add_context_length(shape.trained_length)
    out.add_embedding_length(shape.width)
    out.add_block_count(shape.layers)
    out.add_feed_forward_length(shape.feed_forward)
    out.add_head_count(shape.heads)
    out.add_head_count_kv(shape.heads)
    out.add_key_length(head)
    out.add_value_length(head)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges([" ".join(pair) for pair in MERGES])
    _add_specials(out, stock)

    def random(name: str, *size: int, scale: float | None = None) -> None:
        values = rng.standard_normal(size).astype(np.float32) * (scale or 3 / np.sqrt(size[-1]))
        out.add_tensor(name, values.astype(np.float16 if len(tokens) > 1000 else np.float32))

    def ones(name: str, size: int) -> None:
        out.add_tensor(name, np.full(size, np.nan if poison else 1.0, np.float32))

    random("token_embd.weight", len(tokens), shape.width, scale=0.5)
    ones("output_norm.weight", shape.width)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm.weight", shape.width)
        ones(f"{block}.ffn_norm.weight", shape.width)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            random(f"{block}.{name}.weight", shape.width, shape.width)
        for name in ("attn_q", "attn_k", "attn_v") if biases else ():
            ones(f"{block}.{name}.bias", shape.width)
        if architecture == "qwen3":
            ones(f"{block}.attn_q_norm.weight", head)
            ones(f"{block}.attn_k_norm.weight", head)
        random(f"{block}.ffn_gate.weight", shape.feed_forward, shape.width)
        random(f"{block}.ffn_up.weight", shape.feed_forward, shape.width)
        random(f"{block}.ffn_down.weight", shape.width, shape.feed_forward)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _add_specials(out: gguf.GGUFWriter, stock: str) -> None:
    if not stock:
        out.add_string("dg.note", "ä" * 500)
        return
    out.add_bos_token_id(1)
    out.add_eos_token_id(1)
    out.add_add_bos_token(stock == "plain")
    for key, token in {"sep": 0, "pre": 2, "suf": 3, "mid": 4}.items() if stock == "fim" else ():
        out.add_uint32(f"tokenizer.ggml.fim_{key}_token_id", token)


SPEC = ModelSpec(
    name="tiny",
    vocab_size=len(vocabulary()[0]),
    sampling=MaskSampling(mask_id=0),
    end_ids=(1,),
    fim=FimTokens(prefix_id=2, suffix_id=3, middle_id=4),
    banned_ids=(0, 2, 3, 4),
    canvas_lengths=(8, 16, 32),
    max_prompt_tokens=256,
)
UNIFORM = replace(SPEC, sampling=UniformSampling())


@pytest.fixture(scope="session")
def write_model(tmp_path_factory):
    """Writes a GGUF of a given shape; returns its path."""

    def make(name: str = "made.gguf", shape: Shape = Shape(), **options) -> Path:
        return write(tmp_path_factory.mktemp("models") / name, shape, **options)

    make.shape = Shape
    return make


@pytest.fixture(scope="session")
def tiny_path(write_model):
    path = write_model("tiny.gguf")
    assert path.stat().st_size < 1 << 20
    return path


@pytest.fixture
def open_denoiser(tiny_path):
    """Opens denoisers over the tiny model, or over `path`; closes them after the test."""
    opened = []

    def open_one(spec=SPEC, *, path=tiny_path, device_candidates=False, **settings):
        chosen = RuntimeSettings(**{"threads": 1, "gpu_layers": 0, **settings})
        denoiser = LlamaDenoiser(LlamaModel.load(path, chosen), spec, chosen, device_candidates=device_candidates)
        opened.append(denoiser)
        return denoiser

    open_one.mask, open_one.uniform = SPEC, UNIFORM
    yield open_one
    for denoiser in opened:
        denoiser.close()
