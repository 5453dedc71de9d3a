"""Tiny random DiffusionGemmas: as transformers saves them, with a tokenizer, and as the published GGUF files.

Random weights answer noise, but the same noise in every runtime. Special tokens have the real model's ids.
"""

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from dg_lsp.gguf import copied, flag, read_header, text, uint32, write_gguf

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
_FIRST_BYTE, _FIRST_LETTER = 108, 364
_LETTERS = ("▁", *map(chr, range(33, 127)))
_WORDS = ("▁▁▁▁", "self", "def▁", "return▁", "result", "value", "items", "for▁", "in▁", "▁=▁", "):")


def tiny_model(window=64):
    """A `DiffusionGemmaForBlockDiffusion` in float32 on the CPU, weights drawn so that entropies vary."""
    import torch
    from transformers import DiffusionGemmaForBlockDiffusion

    torch.manual_seed(0)
    model = DiffusionGemmaForBlockDiffusion(_config(window)).eval()
    generator = torch.Generator().manual_seed(1)
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
        for layer in range(6):
            for stack in (model.model.decoder, model.model.encoder.language_model):
                stack.layers[layer].layer_scalar.fill_(0.5 + 0.05 * layer)
    return model


def _config(window):
    from transformers import DiffusionGemmaConfig, DiffusionGemmaTextConfig, Gemma4VisionConfig

    text = DiffusionGemmaTextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        sliding_window=window,
        max_position_embeddings=4096,
        num_experts=4,
        top_k_experts=4,  # all of them: a tiny difference never sends a token to another one
        moe_intermediate_size=48,
        layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2,
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
        use_clipped_linears=True,  # their limits are tensors without dimensions
    )
    ids = {"boi_token_id": 509, "eoi_token_id": 510, "image_token_id": 511}
    return DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=32, **ids)


def write_checkpoint(folder: Path, model=None, shard_size="5GB") -> Path:
    """A directory for `from_pretrained` and `dg-lsp models convert`."""
    (model or tiny_model()).save_pretrained(folder, max_shard_size=shard_size)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}
    config |= {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad", "mask")}
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
    trees = {"tokenizer": tokenizer_json(), "tokenizer_config": config, "generation_config": generation}
    for name, tree in trees.items():
        (folder / f"{name}.json").write_text(json.dumps(tree), encoding="utf-8")
    return folder


def write_repacked(checkpoint: Path, target: Path) -> Path:
    """The direct conversion of a checkpoint: `target` and its side file, in float32."""
    from dg_lsp.models.convert import convert_checkpoint, write_model

    write_model(convert_checkpoint(checkpoint), target)
    return target


def tokenizer_json():
    """Gemma's kind of tokenizer: BPE over text whose blanks are `▁`, bytes to fall back on, real special ids."""
    merges = list(dict.fromkeys((word[:end], word[end]) for word in _WORDS for end in range(1, len(word))))
    tokens = {i: SPECIALS.get(i, f"<unused{i}>") for i in range(VOCAB_SIZE)} | {NEWLINE_ID: "\n"}
    tokens |= {_FIRST_BYTE + byte: f"<0x{byte:02X}>" for byte in range(256)}
    tokens |= dict(enumerate((*_LETTERS, *map("".join, merges)), _FIRST_LETTER))
    vocabulary = {token: i for i, token in tokens.items()}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    start = ("<bos>", vocabulary["<bos>"])
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A $B", special_tokens=[start])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS.values()])
    return json.loads(tokenizer.to_str())


def write_diffusion_gguf(repacked: Path, target: Path) -> Path:
    """A GGUF of architecture `diffusion-gemma` as llama.cpp's pull request 24423 writes it, from a repacked model."""
    model, side = (read_header(repacked.with_name(f"{repacked.stem}{end}.gguf")) for end in ("", ".selfcond"))
    values = {re.sub(r"^gemma4\.", "diffusion-gemma.", name): value for name, value in model.values.items()}
    canvas_lengths = values["dg.canvas_lengths"].read()
    values |= {
        "general.architecture": text("diffusion-gemma"),
        "diffusion-gemma.attention.causal": flag(False),
        "diffusion.canvas_length": uint32(int(canvas_lengths.split(",")[-1])),
    }
    tensors = [copied(tensor) for tensor in model.tensors.values()]
    scales = {name: tensor for name, tensor in model.tensors.items() if name.endswith(".layer_output_scale.weight")}
    tensors += [copied(tensor, name.replace("layer_", "enc_layer_")) for name, tensor in scales.items()]
    tensors += [copied(tensor, f"{name.replace('.', '_')}.weight") for name, tensor in side.tensors.items()]
    with target.open("wb") as file:
        write_gguf(file, {name: value for name, value in values.items() if not name.startswith("dg.")}, tensors)
    return target
