"""The denoiser on transformers: prompts encoded causally into slots, canvases decoded in both directions after them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dg_lsp.backends.checks import (
    check_prompt_length,
    check_slot,
    check_temperature,
    checked_canvases,
    checked_ids,
)
from dg_lsp.backends.hf.failures import mapped
from dg_lsp.backends.hf.network import CanvasTokens, Network
from dg_lsp.backends.hf.prefix import PrefixCache, prefix_bytes
from dg_lsp.backends.hf.reduce import reduce as reduce_in_torch
from dg_lsp.backends.hf.stage import Stage
from dg_lsp.backends.hf.step import Reduce, StepInput, Stepper
from dg_lsp.canvas.layout import TokenIds, common_prefix_length, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import DeviceMemory, Footprint, Prediction
from dg_lsp.errors import BackendError, ModelUnsupportedError, RequestError

MAX_CANVASES = 8
"""Canvases of one step."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in tokens."""

    num_slots: int
    prompt: int
    """Longest prompt of a slot."""
    canvas_tokens: int
    """All canvases of one step together."""


def limits_for(spec: ModelSpec, num_slots: int, context_length: int = 0) -> Limits:
    """What a model's spec and the settings ask for; 0 lets the spec decide how long a prompt may be."""
    canvas_tokens = 4 * spec.longest_block
    prompt = max(1, context_length - spec.longest_block) if context_length else spec.max_prompt_tokens
    return Limits(num_slots, prompt, canvas_tokens)


class HfDenoiser:
    """See `Denoiser`. One thread only. What self-conditioning keeps of a canvas is kept here, by slot and lane."""

    def __init__(
        self,
        network: Network,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        limits: Limits,
        *,
        reduce: Reduce = reduce_in_torch,
        captures: bool = False,
        compiles: bool = False,
    ) -> None:
        """Makes the slots and the buffers of a step.

        Raises:
            ModelUnsupportedError: spec and network do not belong together.
        """
        if spec.vocab_size != network.vocab_size:
            raise ModelUnsupportedError(
                f"{spec.name}: its description does not fit its vocabulary of {network.vocab_size}; download it again"
            )
        self.spec = spec
        self.tokenizer = tokenizer
        self.num_slots = limits.num_slots
        self.limits = limits
        self._network = network
        self._device = network.embedding.device
        sizes = {"prompt_limit": limits.prompt, "canvas_tokens": limits.canvas_tokens}
        self._stage = Stage(network.config, like=network.embedding, **sizes)
        banned_ids = torch.tensor(spec.banned_ids, dtype=torch.long, device=self._device)
        self.stepper = Stepper(
            network, self._stage, reduce, banned_ids,
            prompt_limit=limits.prompt, captures=captures, compiles=compiles,
        )  # fmt: skip
        self._prefixes = [PrefixCache(network.config, limits.prompt) for _ in range(limits.num_slots)]
        self._held = [token_ids([]) for _ in range(limits.num_slots)]
        self._staged: int | None = None
        """Which slot's prompt the stage holds, as it is now."""
        self._conditioning: dict[tuple[int, int], torch.Tensor] = {}
        """By slot and lane: what the last step said of this canvas, shape (L, hidden)."""
        self._is_closed = False

    @property
    def threads(self) -> int:
        """CPU threads of a step."""
        return torch.get_num_threads()

    @property
    def prompt_limit(self) -> int:
        """Longest prompt in tokens."""
        return self.limits.prompt

    @property
    def footprint(self) -> Footprint:
        """See `Footprint`. Prompts take what they need."""
        lengths = [len(held) for held in self._held]
        itemsize, device = self._network.embedding.element_size(), self._device
        on_gpu = () if device.type == "cpu" else (torch.cuda.get_device_name(device), *torch.cuda.mem_get_info(device))
        return Footprint(
            weights_bytes=self._network.size_bytes,
            cache_bytes=sum(prefix_bytes(self._network.config, length, itemsize) for length in lengths),
            cache_cells=sum(lengths),
            cache_limit=self.num_slots * self.limits.prompt,
            cache_used=sum(lengths),
            devices=(DeviceMemory(*on_gpu),) if on_gpu else (),
        )

    @torch.inference_mode()
    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`."""
        self._check_open()
        check_slot(slot, self.num_slots)
        wanted = token_ids(checked_ids("prompt", prompt_ids, self.spec.vocab_size))
        check_prompt_length(len(wanted), self.limits.prompt)
        for key in [key for key in self._conditioning if key[0] == slot]:
            del self._conditioning[key]
        shared = common_prefix_length(self._held[slot], wanted)
        if shared == len(wanted) == len(self._held[slot]):
            return 0
        self._staged = None if self._staged == slot else self._staged
        self._held[slot] = token_ids([])  # until all of it is there
        try:
            with mapped("prefill"):
                kept = self._prefixes[slot].crop(shared)
                if kept < len(wanted):
                    self._network.encode(self._prefixes[slot], self._tensor(wanted[kept:]))
        except BackendError:
            self._prefixes[slot].crop(0)
            raise
        self._held[slot] = wanted
        return len(wanted) - kept

    @torch.inference_mode()
    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`."""
        self._check_open()
        check_slot(slot, self.num_slots)
        check_temperature(temperature)
        checked = checked_canvases(
            canvases, self.spec.vocab_size, max_canvases=MAX_CANVASES, max_canvas_tokens=self.limits.canvas_tokens
        )
        keys = [(slot, lane) for lane in (lanes or range(len(checked)))]
        if len(keys) != len(checked):
            raise RequestError(f"{len(checked)} canvases of a step have {len(keys)} lanes; give one lane to each")
        with mapped("denoising step"):
            given = self._input(slot, checked, keys, temperature, rng)
            self._show(slot)
            output = self.stepper.run(given, len(self._held[slot]))
            lengths = [len(canvas) for canvas in checked]
            for key, part in zip(keys, output.conditioning.split(lengths), strict=True):
                self._conditioning[key] = part.clone()
            rows = output.rows.cpu().numpy()
        if not np.isfinite(rows).all():
            raise BackendError("the model computed no numbers; its file may be damaged, try another one")
        parts = np.split(rows, np.cumsum(lengths)[:-1], axis=1)
        return [_prediction(part, is_greedy=temperature == 0) for part in parts]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; the decoder attends in both directions only.

        Raises:
            BackendError: always.
        """
        check_slot(slot, self.num_slots)
        checked_ids("extension", ids, self.spec.vocab_size)
        raise BackendError(f"{self.spec.name} cannot go on causally; use the decoder diffusion")

    def close(self) -> None:
        """Gives the device's memory back. Harmless when repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stepper.close()
        self._conditioning.clear()
        del self.stepper, self._stage, self._prefixes, self._network
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendError("the model is closed; open it again")

    def _input(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        keys: Sequence[tuple[int, int]],
        temperature: float,
        rng: np.random.Generator,
    ) -> StepInput:
        offsets = np.concatenate([np.arange(len(canvas)) for canvas in canvases])
        numbers = np.repeat(np.arange(len(canvases)), [len(canvas) for canvas in canvases])
        length = len(self._held[slot])
        # one array, one copy to the device
        packed = self._tensor(
            np.stack([np.concatenate(canvases), offsets + length, numbers, np.full_like(numbers, length)])
        )
        floats = np.append(rng.random(len(numbers)), temperature or 1.0).astype(np.float32)
        floats[:-1] = np.minimum(floats[:-1], np.nextafter(np.float32(1), np.float32(0)))  # rounding may have made it 1
        chances = torch.from_numpy(floats).to(self._device)
        tokens = CanvasTokens(
            packed[0], packed[1], packed[2], packed[3, 0], self._conditioned(keys, [len(canvas) for canvas in canvases])
        )
        return StepInput(tokens, chances[-1], chances[:-1])

    def _conditioned(self, keys: Sequence[tuple[int, int]], lengths: Sequence[int]) -> torch.Tensor:
        """Shape (T, hidden); zeros for a canvas that nothing has been said of, or that has another length now."""
        width, like = self._network.embedding_length, self._network.embedding
        held = (self._conditioning.get(key) for key in keys)
        return torch.cat([
            part if part is not None and len(part) == length else like.new_zeros((length, width))
            for part, length in zip(held, lengths, strict=True)
        ])  # fmt: skip

    def _show(self, slot: int) -> None:
        """Has the stage hold the slot's prompt."""
        if self._staged != slot:
            self._stage.load(self._prefixes[slot])
            self._staged = slot

    def _tensor(self, ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)).to(self._device)


def _prediction(rows: np.ndarray, *, is_greedy: bool) -> Prediction:
    """Of rows of shape (4, L), see `Sampled`."""
    argmax, sampled = rows[0].astype(np.int32), rows[1].astype(np.int32)
    return Prediction(argmax, argmax if is_greedy else sampled, rows[2].copy(), np.maximum(rows[3], 0.0))
