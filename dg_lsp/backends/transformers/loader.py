"""Opens a checkpoint directory: chooses device and number format, compares memory, loads weights and tokenizer.

No GPU has run this module; the choices for a GPU are tested with replacements of torch's functions.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Runtime
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.utils import logging

from dg_lsp.backends.threads import threads_for
from dg_lsp.backends.transformers.denoiser import (
    TransformersDenoiser,
    gpu_memory,
    map_load_errors,
    map_tokenizer_errors,
)
from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork, prefix_bytes
from dg_lsp.canvas.layout import TokenIds, token_ids
from dg_lsp.canvas.spec import Checkpoint, ModelSpec
from dg_lsp.diffusion.denoiser import checked_ids
from dg_lsp.errors import ModelError, ModelMemoryError, SettingsError, escaped
from dg_lsp.settings import ModelSettings
from dg_lsp.system import system_free

_EXPERTS = "grouped_mm"
"""One multiplication for all experts. In transformers 5.23, `sonicmoe` uses another activation, and `batched_mm` copies
the weights of an expert for each token."""
_LOGITS_ARRAYS = 4
"""Arrays of shape (canvas, vocabulary) in float32 that a step holds at a time."""


def load(
    checkpoint: Checkpoint, spec: ModelSpec, settings: ModelSettings, report: Callable[[str], None]
) -> TransformersDenoiser:
    """See `open_checkpoint`. Weights are bfloat16 on a GPU, and as stored on the CPU."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = choose_device(settings)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels of this thread run and graphs are captured there
    dtype = torch.bfloat16 if device.type == "cuda" else getattr(torch, checkpoint.stored_type)
    if settings.context_length:
        longest = max(1, settings.context_length - spec.longest_block)
        spec = replace(spec, max_prompt_tokens=min(spec.max_prompt_tokens, longest))
    with map_load_errors(checkpoint.folder):
        config = DiffusionGemmaConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    report(check_memory(checkpoint.num_weights, config.get_text_config(), spec, settings.num_slots, dtype, device))
    tokenizer = CheckpointTokenizer(checkpoint.folder, checkpoint.special_ids, spec.vocab_size)
    network = DiffusionGemmaNetwork(_load_model(checkpoint, config, device, dtype))
    denoiser = TransformersDenoiser(network, spec, tokenizer, settings.num_slots)
    if not settings.threads and device.type == "cpu":
        torch.set_num_threads(threads_for(0, denoiser.run_step, on_gpu=False))
    return denoiser


def choose_device(settings: ModelSettings) -> torch.device:
    """The device of the settings; `auto` is the GPU with the most free memory, else the CPU. Raises `SettingsError`."""
    wanted = settings.device
    count = torch.cuda.device_count()
    kind, _, numbers = wanted.partition(":")
    if kind == "cpu" or (kind == "auto" and (settings.gpu_layers == 0 or not count)):
        return torch.device("cpu")
    if "," in numbers:
        raise SettingsError(f"model.device is {wanted}, but a checkpoint runs on one GPU: name one, or use a GGUF")
    if int(numbers or 0) >= count:
        raise SettingsError(f"model.device is {wanted}, but torch finds {count} GPUs; set it to auto or cpu")
    free = [gpu_memory(torch.device("cuda", number)).free for number in range(count)] if not numbers else []
    return torch.device("cuda", int(numbers) if numbers else free.index(max(free)))


def check_memory(
    num_weights: int, text_config: Any, spec: ModelSpec, num_slots: int, dtype: torch.dtype, device: torch.device
) -> str:
    """The memory that a model needs and that is free, in a sentence, before its weights are loaded.

    Raises:
        ModelMemoryError: it does not fit.
    """
    needed = {
        "weights": num_weights * dtype.itemsize,
        # a step copies one of them
        "prompts": (num_slots + 1) * prefix_bytes(text_config, spec.max_prompt_tokens, dtype.itemsize),
        "step": _LOGITS_ARRAYS * 4 * spec.longest_block * spec.vocab_size,
    }
    gpu = gpu_memory(device) if device.type == "cuda" else None
    where, free = (gpu.name, gpu.free) if gpu else ("this machine", system_free())
    total = sum(needed.values())
    parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in needed.items())
    sentence = f"{spec.name} needs {total / 1e9:.1f} GB ({parts}), and {where} has {free / 1e9:.1f} GB free"
    if total > free:
        advice = "set num_slots or context_length lower, or convert it to a quantized GGUF"
        raise ModelMemoryError(f"{sentence}: {advice}")
    return sentence


def _load_model(
    checkpoint: Checkpoint, config: DiffusionGemmaConfig, device: torch.device, dtype: torch.dtype
) -> torch.nn.Module:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with map_load_errors(checkpoint.folder):
        model = DiffusionGemmaForBlockDiffusion.from_pretrained(
            checkpoint.folder,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",  # flash attention has another sliding window
            experts_implementation=_EXPERTS,
            use_safetensors=True,
            local_files_only=True,
            device_map={"": device} if device.type == "cuda" else None,
        )
    for name, weight in model.named_parameters():
        # a step would fail on a GPU, and everything after it; `isfinite` would need memory for a copy of the weight
        if not all(bound.isfinite() for bound in weight.detach().aminmax()):
            raise ModelError(f"{checkpoint.folder}: {escaped(name)} is not finite; download it again")
    model.requires_grad_(False)
    model.model.encoder.vision_tower = model.model.encoder.embed_vision = None  # only text is used
    return model


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class CheckpointTokenizer:
    """A tokenizer.json. Encodes text as text: adds no token, and never encodes a spelling as a special token.

    transformers' processor would require image libraries.
    """

    def __init__(self, folder: Path, special_ids: frozenset[int], vocab_size: int) -> None:
        """`special_ids` are not text, even where the file lists them as ordinary tokens. Raises `ModelError`."""
        path = folder / "tokenizer.json"
        with map_load_errors(path):
            tree = json.loads(path.read_text(encoding="utf-8"))
            self._full = Runtime.from_str(json.dumps(tree))
            added = [entry for entry in tree.get("added_tokens") or () if entry["id"] not in special_ids]
            plain = {**tree, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
            self._text = Runtime.from_str(json.dumps(plain))
        self._special_ids = special_ids
        self._vocab_size = vocab_size
        self._token_bytes = lru_cache(maxsize=None)(self._bytes)

    def encode(self, text: str) -> TokenIds:
        """Shape (N,). A lone surrogate, which UTF-8 cannot encode, becomes `?`."""
        with map_tokenizer_errors():
            return token_ids(self._text.encode(_valid(text), add_special_tokens=False).ids)

    def decode(self, ids: TokenIds) -> bytes:
        """Special tokens decode to nothing."""
        return b"".join(map(self._token_bytes, checked_ids("decode", ids, self._vocab_size).tolist()))

    def pieces(self) -> list[bytes]:
        """See `Tokenizer.pieces`."""
        return [*map(self._token_bytes, range(self._vocab_size))]

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer.special`."""
        token: int | None = self._full.token_to_id(_valid(spelling))
        return token

    def _bytes(self, token: int) -> bytes:
        spelling: str | None = self._full.id_to_token(token)
        if token in self._special_ids or spelling is None:
            return b""
        if match := _BYTE.fullmatch(spelling):
            return bytes([int(match[1], 16)])
        return spelling.replace("\u2581", " ").encode()  # the space of SentencePiece vocabularies
