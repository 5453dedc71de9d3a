"""A `Denoiser` on transformers: a causal encoder of prompts, a bidirectional decoder of canvases after them.

`load` chooses device and number format, compares memory, and loads weights and tokenizer. No GPU has run it: its
choices for a GPU are tested with replacements of torch's functions. Exceptions of torch, transformers and tokenizers
become dg-lsp's errors here.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Runtime
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.utils import logging
from typing_extensions import override

from dg_lsp.backends.threads import threads_for
from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork, PrefixCache, StepInputs, prefix_bytes
from dg_lsp.canvas.layout import (
    TokenIds,
    Tokenizer,
    checked_canvases,
    checked_prompt,
    common_prefix_length,
    token_ids,
)
from dg_lsp.canvas.spec import Checkpoint, ModelSpec
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
)
from dg_lsp.errors import BackendError, ModelError, ModelMemoryError, SettingsError, escaped, with_extra
from dg_lsp.settings import ModelSettings
from dg_lsp.system import system_free


class TransformersDenoiser(Denoiser):
    """See `Denoiser`. One thread only. Keeps the self-conditioning of each canvas by slot and lane."""

    def __init__(self, network: DiffusionGemmaNetwork, spec: ModelSpec, tokenizer: Tokenizer, num_slots: int) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self.num_slots = num_slots
        self._network = network
        self._device = network.embedding.device
        self._banned_ids = self._tensor(np.array(spec.banned_ids))
        self._prefixes = [PrefixCache(network.config) for _ in range(num_slots)]
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
        )

    @override
    @torch.inference_mode()
    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        prompt = checked_prompt(prompt_ids, self.spec.vocab_size, self.spec.max_prompt_tokens)
        self._conditioning = {key: last for key, last in self._conditioning.items() if key[0] != slot}
        shared = common_prefix_length(self._prompts[slot], prompt)
        self._prompts[slot] = token_ids([])  # until the encoder has finished
        try:
            with map_step_errors("prefill"):
                self._prefixes[slot].crop(shared)
                prompt = prompt[: shared + most]
                if shared < len(prompt):
                    self._network.encode(self._prefixes[slot], self._tensor(prompt[shared:]))
        except BackendError:
            self._prefixes[slot] = PrefixCache(self._network.config)
            raise
        self._prompts[slot] = prompt
        return len(prompt) - shared

    @override
    @torch.inference_mode()
    def predict(
        self, slot: int, canvases: Canvases, temperature: float, rng: Rng, lanes: Lanes = (), top_k: TopK | None = None
    ) -> list[Prediction]:
        limits = {"max_canvases": 8, "max_canvas_tokens": 4 * self.spec.longest_block}
        checked = checked_canvases(canvases, self.spec.vocab_size, **limits)
        keys = [(slot, lane) for lane in (lanes or range(len(checked)))]
        lengths = [len(canvas) for canvas in checked]
        with map_step_errors("denoising step"):
            inputs = self._inputs(checked, keys, len(self._prompts[slot]), temperature, rng)
            conditioning, rows = self._network.step(inputs, self._prefixes[slot], self._banned_ids, top_k)
            self._conditioning.update(zip(keys, conditioning.split(lengths), strict=True))
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
        self, canvases: Canvases, keys: Sequence[tuple[int, int]], prompt_length: int, temperature: float, rng: Rng
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


_EXPERTS = "grouped_mm"
"""One multiplication for all experts. In transformers 5.23, `sonicmoe` uses another activation, and `batched_mm` copies
the weights of an expert for each token."""
_LOGITS_ARRAYS = 4  # arrays of shape (canvas, vocabulary) in float32 that a step holds at a time


def load(
    checkpoint: Checkpoint, spec: ModelSpec, settings: ModelSettings, report: Callable[[str], None]
) -> TransformersDenoiser:
    """See `open_checkpoint`. Weights are bfloat16 on a GPU, and as stored on the CPU."""
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
    torch.set_num_threads(threads_for(settings.threads, denoiser.run_step, on_gpu=device.type == "cuda"))
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
    devices = [torch.device("cuda", int(numbers))] if numbers else [torch.device("cuda", i) for i in range(count)]
    return max(devices, key=lambda device: gpu_memory(device).free)


def check_memory(
    num_weights: int, text_config: Any, spec: ModelSpec, num_slots: int, dtype: torch.dtype, device: torch.device
) -> str:
    """The memory that a model needs and that is free, in a sentence, before its weights are loaded.

    Raises ModelMemoryError: it does not fit.
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
        return b"".join(map(self._token_bytes, ids.tolist()))

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
