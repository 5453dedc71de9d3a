"""Tiny random DiffusionGemmas: as transformers saves them, with a tokenizer, and as GGUF files of both pull requests'.

Random weights answer noise, but the same noise in every runtime. Special tokens have the real model's ids.
"""

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

VOCAB_SIZE = 512
SPECIALS = {
    **dict(enumerate(("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"))),
    **dict(enumerate(("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"), 46)),
    **dict(enumerate(("<|tool_response>", "<tool_response|>", '<|"|>'), 50)),
    **dict(enumerate(("<|channel>", "<channel|>"), 100)),
    **dict(enumerate(("<|turn>", "<turn|>"), 105)),
    **dict(enumerate(("<|image>", "<image|>", "<|image|>"), 509)),
    98: "<|think|>",
}
NEWLINE_ID = 107
_FIRST_BYTE, _FIRST_LETTER, _END_OF_TEXT_TOKENS = 108, 364, 509
_TEXT = """def total(items, start=0):
    result = start
    for item in items:
        result += item.value
    return result

class Node:
    def __init__(self, value, parent=None):
        self.value = value
        self.parent = parent
user model python file thought
"""


@dataclass(frozen=True)
class TinyShape:
    """All experts are active by default: a tiny difference never sends a token to another one."""

    layers: int = 6
    experts: int = 4
    top_k: int = 4
    window: int = 64
    canvas: int = 32
    width: int = 64
    seed: int = 0


def tiny_model(shape=TinyShape()):
    """A `DiffusionGemmaForBlockDiffusion` in float32 on the CPU, weights drawn so that entropies vary."""
    import torch
    from transformers import DiffusionGemmaForBlockDiffusion

    torch.manual_seed(shape.seed)
    model = DiffusionGemmaForBlockDiffusion(_config(shape)).eval()
    generator = torch.Generator().manual_seed(shape.seed + 1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "vision" in name:
                continue
            if weight.dim() >= 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5)
            elif "norm" in name:
                weight.copy_(1 + 0.2 * torch.randn(weight.shape, generator=generator))
            else:
                weight.copy_(0.5 + torch.rand(weight.shape, generator=generator))
        model.model.decoder.embed_tokens.weight.mul_(0.6)
        for layer in range(shape.layers):
            for stack in (model.model.decoder, model.model.encoder.language_model):
                stack.layers[layer].layer_scalar.fill_(0.5 + 0.05 * layer)
    return model


def _config(shape):
    from transformers import DiffusionGemmaConfig, DiffusionGemmaTextConfig, Gemma4VisionConfig

    text = DiffusionGemmaTextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.width,
        intermediate_size=96,
        num_hidden_layers=shape.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        sliding_window=shape.window,
        max_position_embeddings=4096,
        num_experts=shape.experts,
        top_k_experts=shape.top_k,
        moe_intermediate_size=48,
        layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * (shape.layers // 3),
        use_bidirectional_attention="vision",
    )
    vision = Gemma4VisionConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        position_embedding_size=64,
    )
    ids = {"boi_token_id": 509, "eoi_token_id": 510, "image_token_id": 511}
    return DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=shape.canvas, **ids)


def write_checkpoint(folder: Path, shape=TinyShape(), *, model=None, dtype=None, shard_size="5GB") -> Path:
    """The directory that `from_pretrained` and `dg-lsp models repack` take; `dtype` is torch's, without it float32."""
    model = tiny_model(shape) if model is None else model
    (model if dtype is None else model.to(dtype)).save_pretrained(folder, max_shard_size=shard_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "mask_token": "<mask>", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    generation = {
        "bos_token_id": 2,
        "eos_token_id": [1, 106, 50],
        "pad_token_id": 0,
        "max_denoising_steps": 48,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "t_max": 0.8,
        "t_min": 0.4,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def write_repacked(checkpoint: Path, target: Path, kind: str | None = None) -> Path:
    """The direct conversion of a checkpoint: `target` and its side file; `kind` is F32, F16 or BF16."""
    from dg_lsp.backends.llamacpp.quantize import FILE_TYPES, quantize
    from dg_lsp.models.convert import convert_checkpoint, write_model

    convert = (lambda written, new: quantize(written, new, FILE_TYPES[kind])) if kind else None
    write_model(convert_checkpoint(checkpoint), target, quantize=convert)
    return target


def tokenizer_json():
    """Gemma's kind of tokenizer: BPE over text whose blanks are `▁`, bytes to fall back on, real special ids."""
    merges, words = _merges()
    vocab = {SPECIALS.get(i, f"<unused{i}>"): i for i in range(NEWLINE_ID)} | {"\n": NEWLINE_ID}
    vocab |= {f"<0x{byte:02X}>": _FIRST_BYTE + byte for byte in range(256)}
    vocab |= {word: _FIRST_LETTER + i for i, word in enumerate(words)}
    vocab |= {SPECIALS[i]: i for i in (509, 510, 511)}
    added = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for i, text in SPECIALS.items()
    ]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    sequences = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, sequences[0]],
            "pair": [bos, *sequences],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {**model, "vocab": vocab, "merges": merges},
    }


def _merges():
    """A hundred letters, and what a piece of code makes of them: pairs that stand together most, one after another."""
    words = ["▁", *(chr(code) for code in range(33, 127))]
    lines = [list(line.replace(" ", "▁")) for line in _TEXT.splitlines()]
    merges = []
    while _FIRST_LETTER + len(words) < _END_OF_TEXT_TOKENS:
        pairs = Counter(pair for line in lines for pair in itertools.pairwise(line))
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(list(pair))
        words.append("".join(pair))
        lines = [_joined(line, pair) for line in lines]
    return merges, words


def _joined(line, pair):
    found, at = [], 0
    while at < len(line):
        step = 2 if tuple(line[at : at + 2]) == pair else 1
        found.append("".join(line[at : at + step]))
        at += step
    return found


def write_diffusion_gguf(repacked: Path, target: Path, *, naming="24423") -> Path:
    """A GGUF of architecture `diffusion-gemma` as one of llama.cpp's pull requests writes it, from a repacked model.

    24423 has `self_cond_pre_norm` and the encoder's scales; 24427 has `self_cond_norm` and none of them.
    """
    reader = gguf.GGUFReader(repacked)
    side = gguf.GGUFReader(repacked.with_name(repacked.stem + ".selfcond.gguf"))
    writer = gguf.GGUFWriter(target, "diffusion-gemma")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "dg.")) and name != "general.architecture":
            kind, *of = field.types
            renamed = re.sub(r"^gemma4\.", "diffusion-gemma.", name)
            writer.add_key_value(renamed, field.contents(), kind, of[-1] if of else None)
    writer.add_bool("diffusion-gemma.attention.causal", False)
    canvas = int(str(reader.get_field("dg.canvas_lengths").contents()).split(",")[-1])
    writer.add_uint32("diffusion.canvas_length", canvas)
    pre_norm = {"24423": "self_cond_pre_norm", "24427": "self_cond_norm"}[naming]
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        if naming == "24423" and tensor.name.endswith(".layer_output_scale.weight"):
            name = tensor.name.replace("layer_output_scale", "enc_layer_output_scale")
            writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    for tensor in side.tensors:
        part = tensor.name.removeprefix("self_cond.")
        name = pre_norm if part == "pre_norm" else f"self_cond_{part}"
        writer.add_tensor(f"{name}.weight", np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
