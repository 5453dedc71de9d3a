"""Which GPUs hold a model, and how its layers are split. No GPU has run a split: tested with made-up devices.

Layers are split by whole layers: one GPU computes after the other, and between two of them travel the states of one
layer. The alternatives of llama.cpp, which split each layer, exchange data in every layer and are not offered.
"""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.errors import SettingsError

_ROOM = 1 << 30
"""Bytes that a model leaves free on its GPU for prompts that grow; otherwise its layers are split."""


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs as indices into `library.gpus()`, and the share of the layers on each; both empty on the processor."""

    gpus: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()

    @property
    def is_split(self) -> bool:
        """More than one GPU holds layers."""
        return len(self.gpus) > 1

    def of(self, listed: Sequence[Device]) -> tuple[Device, ...]:
        """Its devices among the listed ones."""
        return tuple(listed[number] for number in self.gpus)

    def describe(self, listed: Sequence[Device]) -> str:
        """For people: `GPU 1: RTX 4090`, `GPU 0: RTX 4090 (60%), GPU 1: RTX 3060 (40%)` or `processor`."""
        shares = [f" ({share:.0%})" for share in self.shares] if self.is_split else [""] * len(self.gpus)
        named = zip(self.gpus, self.of(listed), shares, strict=True)
        return ", ".join(f"GPU {number}: {device.name}{share}" for number, device, share in named) or "processor"

    def apply(self, params: Any, api: Any) -> Any:
        """Sets `split_mode`, `main_gpu` and `tensor_split`; returns what must live until the model is loaded."""
        if not self.gpus:
            return None
        if not self.is_split:
            params.split_mode, params.main_gpu = api.LLAMA_SPLIT_MODE_NONE, self.gpus[0]
            return None
        shares = (ctypes.c_float * api.llama_max_devices())()
        for number, share in zip(self.gpus, self.shares, strict=True):
            shares[number] = share
        params.split_mode, params.main_gpu, params.tensor_split = api.LLAMA_SPLIT_MODE_LAYER, self.gpus[0], shares
        return shares


CPU = Placement()


def choose_placement(wanted: str, listed: Sequence[Device], needed: int) -> Placement:
    """Where a model of `needed` bytes goes, by the setting `model.device` and the GPUs that llama.cpp lists.

    `auto` takes the GPU with the most free memory where the model fits into it with some room, else all GPUs: one GPU
    is faster than two that wait for each other. A split follows the free memory.

    Raises:
        SettingsError: the setting names a GPU that is not there.
    """
    kind, _, numbers = wanted.partition(":")
    if kind == "cpu" or (kind == "auto" and not listed):
        return CPU
    named = tuple(dict.fromkeys(map(int, re.findall(r"\d+", numbers))))
    if not listed or max(named, default=0) >= len(listed):
        what = f"{len(listed)} GPU{'s' * (len(listed) != 1)}"
        raise SettingsError(
            f"model.device is {wanted}, but llama.cpp lists {what}: see dg-lsp doctor, or set it to auto"
        )
    chosen = named or tuple(range(len(listed)))
    free = {number: listed[number].memory_free for number in chosen}
    largest = max(chosen, key=lambda number: free[number])
    if not named and (free[largest] >= needed + _ROOM or len(chosen) == 1):
        return Placement((largest,), (1.0,))
    total = sum(free.values())
    shares = [free[number] / total if total else 1 / len(chosen) for number in chosen]
    return Placement(chosen, tuple(shares))
