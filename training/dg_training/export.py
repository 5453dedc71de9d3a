"""GGUF files of a trained network: weights, tokenizer and `dg.*` metadata.

All `dg.*` values are strings or scalars, because llama.cpp's metadata strings skip arrays.
"""

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gguf as gguf_files
import numpy as np
import numpy.typing as npt
import torch

from dg_lsp.gguf import TENSOR_TYPES, Tensor, Value, flag, float32, text, uint32, vector, write_gguf
from dg_lsp.system import replacement
from dg_training import iq4_nl
from dg_training import tokenizer as vocabulary
from dg_training.documents import NUM_SENTINELS
from dg_training.filters import CODE, DATA
from dg_training.network import DiffusionNetwork
from dg_training.pretrained import ROPE_FACTORS, Pretrained, TrainingProgress, permuted, rotated_heads
from dg_training.rows import RowConfig
from dg_training.tokenizer import Vocabulary

CONFIDENCE_THRESHOLD = 0.9


def write_model(
    path: Path,
    network: DiffusionNetwork,
    vocabulary: Vocabulary,
    source: Pretrained,
    rows: RowConfig,
    progress: TrainingProgress,
    *,
    name: str = "",
    has_canvases: bool = True,
    file_type: str = "Q8_0",
) -> None:
    """Writes the file of a network that was made from `source` and trained on `rows`.

    Without a `name` it is called after the source. Without canvases it decodes token by token only. `file_type` is F32,
    F16, Q8_0 or IQ4_NL and concerns the matrices; norms and biases stay F32. With IQ4_NL the embedding is in Q8_0.
    """
    config = network.config
    pruned = f"vocabulary pruned to {config.num_tokens} tokens"
    values = {
        "general.architecture": text(config.architecture),
        **source.values,
        f"{config.architecture}.vocab_size": uint32(config.num_tokens),
        "general.name": text(name or f"{source.name} dg"),
        "general.description": text(f"{source.name}, adapted to fill code; {pruned}"),
        "general.base_model.count": uint32(1),
        "general.base_model.0.name": text(source.name),
        "general.file_type": uint32(
            gguf_files.LlamaFileType["ALL_F32" if file_type == "F32" else f"MOSTLY_{file_type}"]
        ),
        **vocabulary.values(),
        **_metadata(rows, progress, has_canvases=has_canvases),
    }
    with replacement(path) as new, new.open("wb") as file:
        write_gguf(file, values, list(_tensors(network, file_type)))


def _tensors(network: DiffusionNetwork, file_type: str) -> Iterator[Tensor]:
    config = network.config
    kinds = {kind.name: kind for kind in TENSOR_TYPES.values()}
    for name, tensor in network.state_dict().items():
        weight = tensor.float().cpu().numpy()
        if heads := rotated_heads(name, config):
            weight = permuted(weight, heads, to_neox=False)
        if weight.ndim == 1 or file_type == "F32":
            yield vector(name, weight)
        else:
            kind = kinds["Q8_0" if file_type == "IQ4_NL" and "embd" in name else file_type]
            yield Tensor(name, weight.shape, kind, partial(_packed, weight, kind.name))
    if len(set(config.rope_factors)) > 1:
        yield vector(ROPE_FACTORS, np.array(config.rope_factors, np.float32))


def _packed(weight: npt.NDArray[np.float32], kind: str) -> tuple[bytes]:
    if kind == "IQ4_NL":
        return (iq4_nl.pack(torch.from_numpy(np.ascontiguousarray(weight))).tobytes(),)
    return (gguf_files.quants.quantize(weight, gguf_files.GGMLQuantizationType[kind]).tobytes(),)


def _metadata(rows: RowConfig, progress: TrainingProgress, *, has_canvases: bool) -> dict[str, Value]:
    values = {
        "dg.version": uint32(1),
        "dg.config": text("adapt"),
        "dg.noise": text("mask" if has_canvases else "none"),
        "dg.prompt_format": text("fim"),
        "dg.languages": text(",".join(sorted(CODE | DATA | {"typescriptreact"}))),
        "dg.cut": text("token"),  # prompts end at a safe token boundary
        "dg.mask_token_id": uint32(vocabulary.MASK),
        "dg.end_token_id": uint32(vocabulary.END_OF_MIDDLE),
        "dg.prefix_token_id": uint32(vocabulary.PREFIX),
        "dg.suffix_token_id": uint32(vocabulary.SUFFIX),
        "dg.middle_token_id": uint32(vocabulary.MIDDLE),
        "dg.banned_token_ids": text(",".join(map(str, vocabulary.BANNED_IDS))),
        "dg.canvas_lengths": text(",".join(map(str, sorted(rows.canvas_lengths)))),
        "dg.max_prompt_tokens": uint32(rows.max_prompt + NUM_SENTINELS),
        # enough to accept the tokens of the longest canvas one at a time
        "dg.max_denoising_steps": uint32(max(rows.canvas_lengths)),
        "dg.confidence_threshold": float32(CONFIDENCE_THRESHOLD),
        "dg.causal": flag(True),
        "dg.shift": flag(True),
        "dg.tokens_seen": Value(gguf_files.GGUFValueType.UINT64, struct.pack("<Q", progress.tokens)),
    }
    if rows.start_ids:
        values["dg.start_token_ids"] = text(",".join(map(str, rows.start_ids)))
    if progress.step:
        values["dg.training_steps"] = uint32(progress.step)
        values["dg.training_seconds"] = float32(progress.seconds)
    return values
