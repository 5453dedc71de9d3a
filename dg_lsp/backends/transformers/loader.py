"""Opens a checkpoint directory: chooses device and number format, compares memory, loads weights and tokenizer."""

from typing import Any

import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.utils import logging

from dg_lsp.backends.transformers.cache import prefix_bytes
from dg_lsp.backends.transformers.denoiser import TokenLimits, TransformersDenoiser, gpu_memory
from dg_lsp.backends.transformers.errors import map_load_errors
from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork
from dg_lsp.backends.transformers.tokenizer import CheckpointTokenizer
from dg_lsp.canvas.spec import Checkpoint, ModelSpec
from dg_lsp.errors import ModelMemoryError, SettingsError
from dg_lsp.settings import ModelSettings
from dg_lsp.system import system_free

_EXPERTS = "grouped_mm"
"""One multiplication of static shape for all experts, so that a graph can capture it. In transformers 5.23 `sonicmoe`
uses the wrong activation for this model, and `batched_mm` copies the weights of an expert for each token."""
_LOGITS_ARRAYS = 4
"""Arrays of shape (canvas, vocabulary) in float32 that a step holds at a time."""


def load(
    checkpoint: Checkpoint, spec: ModelSpec, settings: ModelSettings, dtype: torch.dtype | None = None
) -> TransformersDenoiser:
    """See `open_checkpoint`. By default weights are bfloat16 on a GPU, and as stored on the CPU."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = choose_device(settings)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels of this thread run and graphs are captured there
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else getattr(torch, checkpoint.stored_type))
    limits = TokenLimits.of(spec, settings.num_slots, settings.context_length)
    with map_load_errors(checkpoint.folder):
        config = DiffusionGemmaConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    needed = memory_needed(checkpoint.num_weights, config.get_text_config(), spec, limits, dtype)
    check_memory(spec.name, needed, device)
    tokenizer = CheckpointTokenizer(checkpoint.folder, checkpoint.special_ids, spec.vocab_size)
    return TransformersDenoiser(
        DiffusionGemmaNetwork(_load_model(checkpoint, config, device, dtype)), spec, tokenizer, limits
    )


def choose_device(settings: ModelSettings) -> torch.device:
    """The device of the settings; `auto` is the first GPU, else the CPU.

    Raises:
        SettingsError: this machine does not have the device.
    """
    if settings.device == "auto":
        has_gpu = torch.cuda.is_available() and settings.gpu_layers != 0
        return torch.device("cuda", 0) if has_gpu else torch.device("cpu")
    device = torch.device(settings.device)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise SettingsError(f"model.device is {device}, but torch finds {count} GPUs; set it to auto or cpu")
    return torch.device("cuda", device.index or 0)


def memory_needed(
    num_weights: int, text_config: Any, spec: ModelSpec, limits: TokenLimits, dtype: torch.dtype
) -> dict[str, int]:
    """Bytes of the weights, of the prompts in all slots and in the buffers of a step, and of a step's logits."""
    slot = prefix_bytes(text_config, limits.prompt, dtype.itemsize)
    return {
        "weights": num_weights * dtype.itemsize,
        "prompts": (limits.num_slots + 1) * slot,
        "step": _LOGITS_ARRAYS * 4 * spec.longest_block * spec.vocab_size,
    }


def check_memory(name: str, needed: dict[str, int], device: torch.device) -> None:
    """Refuses a model before its weights are loaded.

    Raises:
        ModelMemoryError: it does not fit.
    """
    if device.type == "cuda":
        gpu = gpu_memory(device)
        where, free = gpu.name, gpu.free
    else:
        where, free = "this machine", system_free()
    total = sum(needed.values())
    if total > free:
        parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in needed.items())
        raise ModelMemoryError(
            f"{name} needs {total / 1e9:.1f} GB ({parts}), and {where} has {free / 1e9:.1f} GB free: "
            "set num_slots or context_length lower, or convert it to a quantized GGUF"
        )


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
            local_files_only=True,
            device_map={"": device} if device.type == "cuda" else None,
        )
    model.requires_grad_(False)
    model.model.encoder.vision_tower = model.model.encoder.embed_vision = None  # only text is used
    return model
