"""Weights and vocabulary of one GGUF file."""

import contextlib
import ctypes
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from dg_lsp import gguf
from dg_lsp.backends.llamacpp.errors import load_error
from dg_lsp.backends.llamacpp.library import Library, has_gpu, library
from dg_lsp.backends.llamacpp.memory_estimate import (
    ADVICE,
    ModelSizes,
    WeightBytes,
    check_fits,
    estimate_first_context,
    estimate_weights,
    num_gpu_layers,
    total_file_size,
    try_read_header,
)
from dg_lsp.backends.llamacpp.tokenizer import LlamaTokenizer
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.errors import (
    BackendError,
    ModelBrokenError,
    ModelError,
    ModelMemoryError,
    ModelNotFoundError,
    ModelUnsupportedError,
)
from dg_lsp.gguf import GGUFHeader, copied, map_file_errors, write_gguf
from dg_lsp.settings import ModelSettings
from dg_lsp.system import system_free

_HEADER = struct.Struct("<4sIqq")  # magic, version, number of tensors, number of key-value pairs
_START_BYTES = 1 << 16
"""The keys of the architecture come before the vocabulary."""
_NUM_LAYERS = re.compile(rb"\.block_count\x04\0\0\0(.{4})", re.DOTALL)
_MAX_LAYERS = 512  # more layers make llama.cpp abort the process
_MAPPED_BYTES = 256 << 20
"""A smaller file is read, not mapped: if another program truncates a mapped file, this process crashes."""


def checked_size(path: Path) -> int:
    """The file's size in bytes, once its first bytes look like a GGUF that llama.cpp can open.

    Raises:
        ModelNotFoundError: the file does not exist, or is a directory.
        ModelBrokenError: the file is not a GGUF, cut short, or has no weights.
        ModelUnsupportedError: llama.cpp would abort the process.
        ModelError: the file cannot be read.
    """
    if path.is_dir():
        raise ModelNotFoundError(f"{path} is a directory; name the GGUF file in it")
    with map_file_errors(path), path.open("rb") as file:
        start = file.read(_START_BYTES)
        size = file.seek(0, os.SEEK_END)
    if start[:4] != b"GGUF":
        raise ModelBrokenError(f"{path} is not a GGUF file; name a model in GGUF format")
    if len(start) < _HEADER.size:
        raise ModelBrokenError(f"{path} is cut short; download or export it again")
    _, _, num_tensors, _ = _HEADER.unpack_from(start)
    if num_tensors == 0:
        raise ModelBrokenError(f"{path} has a vocabulary but no weights; name a complete model")
    for match in _NUM_LAYERS.finditer(start):
        if (layers := int.from_bytes(match[1], "little")) > _MAX_LAYERS:
            raise ModelUnsupportedError(
                f"{path} has {layers} layers, llama.cpp supports {_MAX_LAYERS}; use another model"
            )
    return size


class LlamaModel:
    """A loaded model. Only for one thread, which also runs its contexts."""

    def __init__(
        self, handle: Any, path: Path, weights: WeightBytes, header: GGUFHeader | None, *, gpu_layers: int, mapped: bool
    ) -> None:
        api = library().api
        self._api = api
        self._handle = handle
        self.path = path
        self.size_bytes = path.stat().st_size
        self.weights = weights
        self.mapped_bytes = weights.host if mapped else 0
        """Weights that the system may drop from memory, so that every step would read them from the disk."""
        self.on_gpu = gpu_layers != 0
        """Whether any layer is on a GPU."""
        self.metadata: Mapping[str, str] = MappingProxyType(_metadata(api, handle))
        """All keys of the file except arrays, with the values as strings."""
        self.description = _text(lambda buffer, size: api.llama_model_desc(handle, buffer, size))
        vocabulary = api.llama_model_get_vocab(handle)
        self.vocab_size = int(api.llama_vocab_n_tokens(vocabulary))
        self.embedding_length = int(api.llama_model_n_embd(handle))
        self.sizes = self._sizes(header)
        self.gpu_share = min(1.0, num_gpu_layers(gpu_layers, self.sizes.layers) / max(1, self.sizes.layers))
        """Share of the layers on the GPU; their keys and values are there as well."""
        self.has_cache = not api.llama_model_is_diffusion(handle)
        """llama.cpp has no KV cache for its own diffusion architectures."""
        self.tokenizer = LlamaTokenizer(vocabulary, self.vocab_size)
        self._check_supported(api.llama_vocab_type(vocabulary))

    @classmethod
    def load(cls, path: Path, settings: ModelSettings) -> "LlamaModel":
        """Loads a GGUF file; as another architecture if the settings need a KV cache that only that one has.

        Raises:
            ModelError: the file is missing, broken or not supported, or does not fit into memory.
            BackendError: llama-cpp-python cannot be loaded.
        """
        size_bytes = checked_size(path)
        native = library()
        gpu_layers = settings.gpu_layers if settings.gpu_layers and has_gpu() else 0
        needs_cache = settings.prompt_attention in ("per_request", "causal")
        header = try_read_header(path) if needs_cache or size_bytes >= _MAPPED_BYTES else None
        alias = CACHED_ALIAS.get(header.architecture, "") if header and needs_cache else ""
        weights = _checked_weights(path, header, size_bytes, gpu_layers, settings.context_length)
        is_read = size_bytes < _MAPPED_BYTES or bool(alias and not IN_MEMORY)
        with aliased_copy(header, alias) if header and alias else contextlib.nullcontext(path) as source:
            handle = _load(native, source, gpu_layers=gpu_layers, is_read=is_read)
        if not handle:
            raise load_error(path, native.problems)
        try:
            return cls(handle, path, weights, header, gpu_layers=gpu_layers, mapped=not (is_read or alias))
        except ModelUnsupportedError:
            native.api.llama_model_free(handle)
            raise

    @property
    def native(self) -> Any:
        """llama.cpp's model.

        Raises:
            BackendError: the model is closed.
        """
        if self._handle is None:
            raise BackendError("the model is closed; open it again")
        return self._handle

    def close(self) -> None:
        """Frees the weights; contexts must be closed before. Idempotent."""
        if self._handle is not None:
            self.tokenizer.close()
            self._api.llama_model_free(self._handle)
            self._handle = None

    def _sizes(self, header: GGUFHeader | None) -> ModelSizes:
        architecture = self.metadata.get("general.architecture", "")
        has_lists = f"{architecture}.attention.head_count_kv" not in self.metadata  # llama.cpp returns no arrays
        if header := header or (try_read_header(self.path) if has_lists else None):
            return replace(ModelSizes.of_header(header), vocab_size=self.vocab_size)  # it may be a part of the model
        values = {key: [int(text)] for key, text in self.metadata.items() if text.isdecimal()}
        return ModelSizes.of(architecture, values, self.vocab_size)

    def _check_supported(self, vocab_type: int) -> None:
        """Refuses models that llama.cpp loads but that cannot denoise a canvas."""
        api, handle = self._api, self._handle
        if vocab_type == 0 or not self.vocab_size:
            raise ModelUnsupportedError(f"{self.path} has no vocabulary; use a model with its tokenizer inside")
        if api.llama_model_n_ctx_train(handle) < 1:  # overflowed; such a context would take all memory
            raise ModelUnsupportedError(f"{self.path} has an impossible context length; use another model")
        if api.llama_model_has_encoder(handle) or not api.llama_model_has_decoder(handle):
            raise ModelUnsupportedError(f"{self.path} is an encoder, not a language model; use another model")
        if api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle):
            raise ModelUnsupportedError(
                f"{self.path} has recurrent memory, which cannot be cropped after a step; use another model"
            )


def _load(native: Library, path: Path, *, gpu_layers: int, is_read: bool) -> Any:
    """The native model, or null."""
    params = native.api.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    if is_read:
        params.load_mode = native.api.LLAMA_LOAD_MODE_NONE
    params.use_extra_bufts = not native.has_amx
    native.problems.clear()
    return native.api.llama_model_load_from_file(str(path).encode(), params)


def _checked_weights(
    path: Path, header: GGUFHeader | None, size_bytes: int, gpu_layers: int, context_length: int
) -> WeightBytes:
    """Checks that weights and a first context fit into memory."""
    size = total_file_size(path)
    if header is None or size_bytes != size:  # a small or split model: only its size is known
        weights = WeightBytes(size, 0) if gpu_layers else WeightBytes(0, size)
        check_fits(str(path), estimate_weights(weights), ADVICE)
        return weights
    weights, sizes = WeightBytes.of(header, gpu_layers), ModelSizes.of_header(header)
    share = num_gpu_layers(gpu_layers, sizes.layers) / (sizes.layers + 1)
    estimate = estimate_weights(weights) + estimate_first_context(sizes, context_length, gpu_share=share)
    check_fits(str(path), estimate, ADVICE)
    return weights


def _metadata(api: Any, handle: Any) -> dict[str, str]:
    def key(index: int) -> str:
        return _text(lambda buffer, size: api.llama_model_meta_key_by_index(handle, index, buffer, size))

    def value(index: int) -> str:
        return _text(lambda buffer, size: api.llama_model_meta_val_str_by_index(handle, index, buffer, size))

    return {key(index): value(index) for index in range(api.llama_model_meta_count(handle))}


def _text(read: Callable[[Any, int], int]) -> str:
    """A string from a function that fills a buffer and returns the length that it needs."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = read(buffer, size)
        if needed < size:
            return buffer.value.decode("utf-8", "replace")
        size = needed + 1


def check_compatible(spec: ModelSpec, model: LlamaModel, *, needs_cache: bool = True) -> None:
    """Refuses a spec whose token ids or settings do not fit the model: ggml would abort the process later.

    Raises:
        ModelUnsupportedError: they do not fit, the KV cache is missing, or there is nothing to predict.
    """
    if needs_cache and not model.has_cache:
        raise ModelUnsupportedError(
            f"llama.cpp has no KV cache for {model.path}; set model.prompt_attention to exact, or use another model"
        )
    ids = [*spec.banned_ids, *spec.end_ids, *spec.start_ids]
    if isinstance(sampling := spec.sampling, MaskSampling):
        ids += [sampling.mask_id, sampling.expand_id or 0, sampling.delete_id or 0]
    ids += [spec.fim.prefix_id, spec.fim.suffix_id, spec.fim.middle_id] if spec.fim else []
    if spec.vocab_size != model.vocab_size or not all(0 <= token < model.vocab_size for token in ids):
        raise ModelUnsupportedError(f"{model.path}: its description does not fit its vocabulary of {model.vocab_size}")
    has_lengths = spec.sampling is None or min(spec.canvas_lengths, default=0) > 0
    if len(set(spec.banned_ids)) >= model.vocab_size or not has_lengths:
        raise ModelUnsupportedError(f"{model.path}: its description leaves nothing to predict; use another model")


CACHED_ALIAS = {"dream": "qwen2", "rnd1": "qwen3moe", "llada": "llama"}
"""Architectures without a KV cache, and architectures with the same layers and a cache."""
IN_MEMORY = hasattr(os, "memfd_create") and Path("/proc/self/fd").exists()
"""Whether the copy is a file in memory, which llama.cpp maps, instead of a temporary file, which it reads."""
_OTHER_ATTENTION = ".attention.causal"
"""llama.cpp would apply it to the prompt as well."""


@contextlib.contextmanager
def aliased_copy(header: GGUFHeader, architecture: str) -> Iterator[Path]:
    """A temporary copy of a file as another architecture; `general.relabelled_from` has the original one.

    Raises:
        ModelUnsupportedError: the model is split into several files.
        ModelMemoryError: the copy does not fit into memory.
        ModelError: the copy cannot be written.
    """
    path, advice = header.path, "set model.prompt_attention to exact"
    if (split := header.values.get("split.count")) and split.read() not in (0, 1):
        raise ModelUnsupportedError(f"{path} is one of several parts; join them, or {advice}")
    if IN_MEMORY and path.stat().st_size > (free := system_free()):
        raise ModelMemoryError(
            f"a copy of {path} needs {path.stat().st_size >> 20} MiB of memory, {free >> 20} are free; {advice}"
        )
    old = header.architecture
    values = {
        f"{architecture}{key.removeprefix(old)}" if key.startswith(f"{old}.") else key: value
        for key, value in header.values.items()
        if key != old + _OTHER_ATTENTION
    }
    values |= {"general.architecture": gguf.text(architecture), "general.relabelled_from": gguf.text(old)}
    with _temporary_file(path) as (file, copy):
        try:
            write_gguf(file, values, [copied(path, tensor) for tensor in header.tensors.values()])
            file.flush()
        except OSError as error:
            raise ModelError(f"no room for a copy of {path}: {error.strerror or error}; {advice}") from error
        yield copy


@contextlib.contextmanager
def _temporary_file(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file that is deleted afterwards, and a path to read it."""
    if IN_MEMORY:
        with os.fdopen(os.memfd_create(path.stem), "wb") as file:
            yield file, Path(f"/proc/self/fd/{file.fileno()}")
        return
    handle, name = tempfile.mkstemp(suffix=".gguf")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, Path(name)
    finally:
        Path(name).unlink()
