"""On which device and in which number format a checkpoint runs, and whether it fits there."""

from dataclasses import dataclass
from typing import Any

import torch

from dg_lsp.backends.hf.denoiser import Limits
from dg_lsp.backends.hf.prefix import prefix_bytes
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import ModelMemoryError, SettingsError
from dg_lsp.settings import RuntimeSettings
from dg_lsp.system import system_free

FLOAT8 = "float8"
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, FLOAT8: torch.bfloat16}
_FLOAT8_FROM = (9, 0)
"""Compute capability whose tensor cores multiply 8-bit rows with a scale each."""
_LOGITS_COPIES = 4
"""Arrays of (canvas, vocabulary) in float32 that a step holds at a time."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model goes."""

    device: torch.device
    dtype: torch.dtype
    """Of what is computed."""
    is_float8: bool = False
    """Matrices are stored and multiplied in 8 bits."""

    @property
    def on_gpu(self) -> bool:
        """Whether it is not the CPU."""
        return self.device.type != "cpu"

    @property
    def name(self) -> str:
        """The number format as the settings spell it."""
        return FLOAT8 if self.is_float8 else str(self.dtype).removeprefix("torch.")


def place(settings: RuntimeSettings, stored: torch.dtype) -> Placement:
    """Where the settings want it: `auto` is the first GPU, in bfloat16; without one the CPU, as it is stored.

    Raises:
        SettingsError: there is no such device here, or it cannot compute so.
    """
    device = _device(settings)
    wanted = settings.dtype
    if wanted == "auto":
        return Placement(device, torch.bfloat16 if device.type == "cuda" else stored)
    if wanted == FLOAT8 and not _has_float8(device):
        raise SettingsError(
            f"runtime.dtype float8 needs a GPU of compute capability {_FLOAT8_FROM[0]}.{_FLOAT8_FROM[1]} or later, "
            f"and {device} is none: use bfloat16, or a quantized GGUF"
        )
    return Placement(device, _TYPES[wanted], is_float8=wanted == FLOAT8)


def _device(settings: RuntimeSettings) -> torch.device:
    wanted = settings.device
    if wanted == "auto":
        has_gpu = torch.cuda.is_available() and settings.gpu_layers != 0
        return torch.device("cuda", 0) if has_gpu else torch.device("cpu")
    device = torch.device(wanted)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise SettingsError(f"runtime.device is {wanted}, and torch sees {count} GPUs here: set it to auto or cpu")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _has_float8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FLOAT8_FROM


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model takes."""

    weights: int
    prompts: int
    """Keys and values of all slots, and the copy that a step sees."""
    step: int
    """Logits and what is made of them."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.prompts + self.step


def need(weights: int, text_config: Any, spec: ModelSpec, limits: Limits, placement: Placement) -> Need:
    """What weights of so many bytes, prompts and a step take."""
    itemsize = placement.dtype.itemsize
    slot = prefix_bytes(text_config, limits.prompt, itemsize)
    stage = prefix_bytes(text_config, limits.prompt + limits.canvas_tokens, itemsize)
    step = _LOGITS_COPIES * 4 * spec.longest_block * spec.vocab_size
    return Need(weights, limits.num_slots * slot + stage, step)


def check_fits(name: str, needed: Need, placement: Placement) -> None:
    """Refuses a model before half of it is loaded.

    Raises:
        ModelMemoryError: with the numbers.
    """
    free = _free_bytes(placement.device)
    if needed.total <= free:
        return
    where = torch.cuda.get_device_name(placement.device) if placement.on_gpu else "this machine"
    raise ModelMemoryError(
        f"{name} takes {_gigabytes(needed.total)} GB in {placement.name} (weights {_gigabytes(needed.weights)}, "
        f"prompts {_gigabytes(needed.prompts)}, a step {_gigabytes(needed.step)}) and {where} has "
        f"{_gigabytes(free)} GB free: "
        "set runtime.dtype, num_slots or context_length lower, or repack it to a quantized GGUF"
    )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return system_free()


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f}"
