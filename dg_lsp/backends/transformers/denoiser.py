"""A `Denoiser` on transformers: a causal encoder of prompts, a bidirectional decoder of canvases after them.

Exceptions of torch, transformers and tokenizers become dg-lsp's errors here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork, PrefixCache, StepInputs, prefix_bytes
from dg_lsp.canvas.layout import TokenIds, Tokenizer, common_prefix_length, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import (
    WHOLE_PROMPT,
    Canvases,
    Denoiser,
    DeviceMemory,
    Footprint,
    Lanes,
    Prediction,
    Rng,
    TopK,
    checked_canvases,
    checked_prompt,
)
from dg_lsp.errors import BackendError, ModelError, ModelMemoryError, with_extra


class TransformersDenoiser(Denoiser):
    """See `Denoiser`. One thread only. Keeps the self-conditioning of each canvas by slot and lane."""

    def __init__(self, network: DiffusionGemmaNetwork, spec: ModelSpec, tokenizer: Tokenizer, num_slots: int) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self.num_slots = num_slots
        self._network = network
        self._device = network.embedding.device
        self._banned_ids = self._tensor(np.array(spec.banned_ids))
        self._prefixes = [PrefixCache(network.config, spec.max_prompt_tokens) for _ in range(num_slots)]
        self._prompts = [token_ids([]) for _ in range(num_slots)]
        self._conditioning: dict[tuple[int, int], torch.Tensor] = {}
        """By slot and lane, shape (L, hidden)."""
        self._is_closed = False

    @property
    def threads(self) -> int:
        """CPU threads of a step."""
        return torch.get_num_threads()

    def run_step(self, threads: int) -> None:
        """A short step for the measurement of threads, which every model in this process has from then on."""
        torch.set_num_threads(threads)
        canvas = token_ids(np.arange(min(16, self.spec.longest_block)) % self.spec.vocab_size)
        self.predict(0, [canvas], 0.0, np.random.default_rng(0))

    @property
    def footprint(self) -> Footprint:
        """See `Footprint`. The cache grows with the prompts."""
        lengths = [len(prompt) for prompt in self._prompts]
        itemsize = self._network.embedding.element_size()
        return Footprint(
            weights_bytes=self._network.size_bytes,
            cache_bytes=sum(prefix_bytes(self._network.config, length, itemsize) for length in lengths),
            cache_cells=sum(lengths),
            cache_limit=self.num_slots * self.spec.max_prompt_tokens,
            cache_used=sum(lengths),
            devices=(gpu_memory(self._device),) if self._device.type == "cuda" else (),
            context_size=self.spec.max_prompt_tokens + self.spec.longest_block,
            sampling="device",
        )

    @torch.inference_mode()
    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """See `Denoiser.prefill`."""
        prompt = checked_prompt(prompt_ids, self.spec.vocab_size, self.spec.max_prompt_tokens)
        self._conditioning = {key: last for key, last in self._conditioning.items() if key[0] != slot}
        shared = common_prefix_length(self._prompts[slot], prompt)
        if shared == len(prompt) == len(self._prompts[slot]):
            return 0
        self._prompts[slot] = token_ids([])  # until the encoder has finished
        try:
            with map_step_errors("prefill"):
                kept = self._prefixes[slot].crop(shared)
                prompt = prompt[: kept + most]
                if kept < len(prompt):
                    self._network.encode(self._prefixes[slot], self._tensor(prompt[kept:]))
        except BackendError:
            self._prefixes[slot].crop(0)
            raise
        self._prompts[slot] = prompt
        return len(prompt) - kept

    @torch.inference_mode()
    def predict(
        self, slot: int, canvases: Canvases, temperature: float, rng: Rng, lanes: Lanes = (), top_k: TopK | None = None
    ) -> list[Prediction]:
        """See `Denoiser.predict`."""
        limits = {"max_canvases": 8, "max_canvas_tokens": 4 * self.spec.longest_block}
        checked = checked_canvases(canvases, self.spec.vocab_size, **limits)
        keys = [(slot, lane) for lane in (lanes or range(len(checked)))]
        lengths = [len(canvas) for canvas in checked]
        with map_step_errors("denoising step"):
            inputs = self._inputs(checked, keys, len(self._prompts[slot]), temperature, rng)
            rows_on_device, conditioning = self._network.step(inputs, self._prefixes[slot], self._banned_ids, top_k)
            self._conditioning.update(zip(keys, conditioning.split(lengths), strict=True))
            rows = self._fetched(rows_on_device)
        if not np.isfinite(rows).all():
            raise BackendError("the model computed NaN or infinite values; its file may be damaged, download it again")
        is_greedy = temperature == 0
        argmax = rows[0].astype(np.int32)
        sampled = rows[0 if is_greedy else 1].astype(np.int32)
        values = (argmax, sampled, rows[2].copy(), np.maximum(rows[3], 0.0), rows[2 if is_greedy else 4].copy())
        columns = (np.split(column, np.cumsum(lengths)[:-1]) for column in values)
        return [Prediction(*parts) for parts in zip(*columns, strict=True)]

    def close(self) -> None:
        """Frees the memory of the device. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._conditioning.clear()
        del self._prefixes, self._network
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _inputs(
        self,
        canvases: Sequence[TokenIds],
        keys: Sequence[tuple[int, int]],
        prompt_length: int,
        temperature: float,
        rng: np.random.Generator,
    ) -> StepInputs:
        lengths = [len(canvas) for canvas in canvases]
        # one array of integers and one of floats: two copies to the device
        positions = np.concatenate([np.arange(prompt_length, prompt_length + length) for length in lengths])
        canvas_numbers = np.repeat(np.arange(len(canvases)), lengths)
        tokens = self._tensor(np.stack([np.concatenate(canvases), positions, canvas_numbers]))
        noise = np.append(rng.random(len(positions)), temperature or 1.0).astype(np.float32)
        noise[:-1] = np.minimum(noise[:-1], np.nextafter(np.float32(1), np.float32(0)))  # float32 rounds up to 1
        conditioning = self._network.embedding.new_zeros((len(positions), self._network.embedding.shape[1]))
        for key, part in zip(keys, conditioning.split(lengths), strict=True):
            last = self._conditioning.get(key)
            if last is not None and len(last) == len(part):  # not in the first step of a canvas
                part.copy_(last)
        return StepInputs(tokens, conditioning, torch.from_numpy(noise).to(self._device))

    def _fetched(self, rows: torch.Tensor) -> np.ndarray:
        """Waits for the device."""
        return rows.cpu().numpy()

    def _tensor(self, ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)).to(self._device)


def gpu_memory(device: torch.device) -> DeviceMemory:
    """The memory of a GPU, shared by all processes."""
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(torch.cuda.get_device_name(device), free, total)


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


@contextmanager
def map_step_errors(what: str) -> Iterator[None]:
    """Raises `BackendError` for an exception of the runtime while it computes `what`."""
    try:
        yield
    except (RuntimeError, MemoryError, ValueError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise BackendError(f"torch: not enough memory for the {what}; lower num_slots or context_length") from error
        raise BackendError(f"torch: the {what} failed ({one_line(error)}); see `dg-lsp doctor`") from error


@contextmanager
def map_tokenizer_errors() -> Iterator[None]:
    """Raises `BackendError` for an exception of the package tokenizers, whose panics are no `Exception`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BackendError(f"tokenizers: the text cannot be tokenized ({one_line(error)})") from error
        raise


@contextmanager
def map_load_errors(path: Path) -> Iterator[None]:
    """Raises `ModelError` for an exception while files are read, `BackendError` for a missing package."""
    try:
        yield
    except ImportError as error:
        raise BackendError(f"{one_line(error)}; {with_extra('transformers')}") from error
    except Exception as error:  # tokenizers raises bare `Exception`, transformers raises classes of its own
        if is_out_of_memory(error):
            raise ModelMemoryError(f"{path} does not fit into memory; use a quantized GGUF") from error
        raise ModelError(f"{path} cannot be loaded ({one_line(error)}); download or export it again") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a device or in main memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error).lower() for text in _OUT_OF_MEMORY)


def one_line(error: BaseException) -> str:
    """The start of the error's message, without line ends."""
    return " ".join(str(error).split())[:200] or type(error).__name__
