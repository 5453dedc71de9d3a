"""Weights and vocabulary of one GGUF file."""

import contextlib
import ctypes
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dg_lsp.backends.llamacpp.architecture_alias import CACHED, IN_MEMORY, architecture_of, relabelled
from dg_lsp.backends.llamacpp.errors import file_error, load_error
from dg_lsp.backends.llamacpp.library import has_gpu, library
from dg_lsp.backends.llamacpp.memory_estimate import (
    ADVICE,
    Sizes,
    Weights,
    check_fits,
    first_context_need,
    header_of,
    layers_on_gpu,
    lists_of,
    sizes_of,
    total_size,
    weights_need,
    weights_of,
)
from dg_lsp.backends.llamacpp.tokenizer import LlamaTokenizer
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.errors import BackendError, ModelBrokenError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.settings import RuntimeSettings

_HEADER = struct.Struct("<4sIqq")  # magic, version, number of tensors, number of key-value pairs
_START_BYTES = 1 << 16
"""The architecture's own keys stand before the vocabulary."""
_NUM_LAYERS = re.compile(rb"\.block_count\x04\0\0\0(.{4})", re.DOTALL)
_MAX_LAYERS = 512  # more of them make llama.cpp abort the process


def checked_size(path: Path) -> int:
    """The size in bytes of a file that begins like a GGUF.

    Raises:
        ModelNotFoundError: no such file, or a directory.
        ModelBrokenError: not a GGUF, or it ends inside its first bytes.
        ModelUnsupportedError: it would make llama.cpp abort the process.
        ModelError: it cannot be read.
    """
    try:
        if path.is_dir():
            raise ModelNotFoundError(f"{path} is a directory; name the GGUF file in it")
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
            size = file.seek(0, 2)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path} does not exist; check the path of the model") from error
    except OSError as error:
        raise file_error(path, error) from error
    _check_start(path, start)
    return size


def _check_start(path: Path, start: bytes) -> None:
    if start[:4] != b"GGUF":
        raise ModelBrokenError(f"{path} is not a GGUF file; name a model in GGUF format")
    if len(start) < _HEADER.size:
        raise ModelBrokenError(f"{path} is cut short; download or export it again")
    _, _, num_tensors, _ = _HEADER.unpack_from(start)
    if num_tensors == 0:
        raise ModelBrokenError(f"{path} holds a vocabulary but no weights; name a whole model")
    for match in _NUM_LAYERS.finditer(start):
        if (layers := int.from_bytes(match[1], "little")) > _MAX_LAYERS:
            raise ModelUnsupportedError(
                f"{path} names {layers} layers, llama.cpp takes {_MAX_LAYERS}; use another model"
            )


_MAPPED_BYTES = 256 << 20
"""A smaller file is read, not mapped: then nobody who cuts it short later can end this process."""


class LlamaModel:
    """A loaded model. Only for one thread, the one that also runs its contexts."""

    def __init__(self, handle: Any, path: Path, weights: Weights, *, gpu_layers: int, is_mapped: bool) -> None:
        api = library().api
        self._api = api
        self._handle = handle
        self._num_users = 0
        self._is_closed = False
        self.path = path
        self.size_bytes = path.stat().st_size
        self.weights = weights
        self.mapped_bytes = weights.host if is_mapped else 0
        """Weights that the system may take the memory of, which would make every step read them again."""
        self.on_gpu = gpu_layers != 0
        """Whether any layer is on a GPU."""
        self.metadata: Mapping[str, str] = MappingProxyType(_metadata(api, handle))
        """All keys of the file but its arrays, values as strings."""
        self.description = _text(lambda buffer, size: api.llama_model_desc(handle, buffer, size))
        vocabulary = api.llama_model_get_vocab(handle)
        self.vocab_size = int(api.llama_vocab_n_tokens(vocabulary))
        self.embedding_length = int(api.llama_model_n_embd(handle))
        self.trained_context_length = int(api.llama_model_n_ctx_train(handle))
        self.sizes = self._sizes()
        self.gpu_share = min(1.0, layers_on_gpu(gpu_layers, self.sizes.layers) / max(1, self.sizes.layers))
        """Of the layers, whose keys and values lie there too."""
        self.has_plain_positions = api.llama_model_rope_type(handle) not in _MULTI_AXIS_ROPE
        """One position a token; embeddings as input need that."""
        self.has_cache = not api.llama_model_is_diffusion(handle)
        """llama.cpp gives its own diffusion architectures no KV cache: every step computes the prompt again."""
        self.tokenizer = LlamaTokenizer(vocabulary, self.vocab_size)
        self._refuse_unsupported(api.llama_vocab_type(vocabulary))

    @classmethod
    def load(cls, path: Path, settings: RuntimeSettings) -> "LlamaModel":
        """Reads a GGUF file; where the settings want a cache, under a name with which llama.cpp gives it one.

        Raises:
            ModelNotFoundError, ModelBrokenError, ModelUnsupportedError, ModelMemoryError, ModelError: see `errors`.
            BackendError: llama-cpp-python cannot be loaded.
        """
        size_bytes = checked_size(path)
        other = CACHED.get(architecture_of(path), "") if settings.prompt_attention in ("per_request", "causal") else ""
        native = library()
        gpu_layers = settings.gpu_layers if settings.gpu_layers and has_gpu() else 0
        weights = _weighed(path, size_bytes, gpu_layers, settings.context_length)
        params = native.api.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        is_read = size_bytes < _MAPPED_BYTES or bool(other and not IN_MEMORY)
        if is_read:
            params.load_mode = native.api.LLAMA_LOAD_MODE_NONE
        params.use_extra_bufts = not native.has_tiles
        native.log.forget_trouble()
        with relabelled(path, other) if other else contextlib.nullcontext(path) as source:
            handle = native.api.llama_model_load_from_file(str(source).encode(), params)
        if not handle:
            raise load_error(path, native.log.trouble)
        try:
            return cls(handle, path, weights, gpu_layers=gpu_layers, is_mapped=not (is_read or other))
        except ModelUnsupportedError:
            native.api.llama_model_free(handle)
            raise

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of an F16 KV cache for one token."""
        return self.sizes.kv_bytes_per_token

    def borrow(self) -> Any:
        """The native model, kept alive until `give_back`.

        Raises:
            BackendError: it is closed.
        """
        if self._handle is None:
            raise BackendError("the model is closed; open it again")
        self._num_users += 1
        return self._handle

    def give_back(self) -> None:
        """Ends a `borrow`; frees the model when it was closed meanwhile."""
        self._num_users -= 1
        self._free_when_unused()

    def close(self) -> None:
        """Frees the weights, once no context uses them any more. Harmless when repeated."""
        self._is_closed = True
        self._free_when_unused()

    def _free_when_unused(self) -> None:
        if self._is_closed and not self._num_users and self._handle is not None:
            self.tokenizer.close()
            self._api.llama_model_free(self._handle)
            self._handle = None

    def _sizes(self) -> Sizes:
        architecture = self.metadata.get("general.architecture", "")
        # said of each layer apart, where only the file itself can be asked
        has_lists = f"{architecture}.attention.head_count_kv" not in self.metadata
        header = header_of(self.path) if has_lists else None
        return Sizes.of(self.metadata, lists_of(header) if header else {}, self.vocab_size)

    def _refuse_unsupported(self, vocab_type: int) -> None:
        """What llama.cpp loads but cannot denoise a canvas with."""
        api, handle = self._api, self._handle
        if vocab_type == 0 or not self.vocab_size:
            raise ModelUnsupportedError(f"{self.path} has no vocabulary; use a model with its tokenizer inside")
        # As a signed number; a context made of it would take all memory.
        if self.trained_context_length < 1:
            raise ModelUnsupportedError(f"{self.path} names an impossible context length; use another model")
        if api.llama_model_has_encoder(handle) or not api.llama_model_has_decoder(handle):
            raise ModelUnsupportedError(f"{self.path} is an encoder, not a language model; use another model")
        if api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle):
            raise ModelUnsupportedError(
                f"{self.path} has recurrent memory, which cannot be cropped after a step; use another model"
            )


def _weighed(path: Path, size_bytes: int, gpu_layers: int, context_length: int) -> Weights:
    """Where its weights go, once it is sure that there is room for them and for a first context."""
    header = header_of(path) if size_bytes >= _MAPPED_BYTES else None
    if header is None or size_bytes != total_size(path):  # small, or in several parts: nobody looks closer
        size = total_size(path)
        weights = Weights(size, 0) if gpu_layers else Weights(0, size)
        check_fits(str(path), weights_need(weights), ADVICE)
        return weights
    weights, sizes = weights_of(header, gpu_layers), sizes_of(header)
    share = layers_on_gpu(gpu_layers, sizes.layers) / (sizes.layers + 1)
    needs = weights_need(weights) + first_context_need(sizes, context_length, gpu_share=share)
    check_fits(str(path), needs, ADVICE)
    return weights


_MULTI_AXIS_ROPE = (8, 40)  # LLAMA_ROPE_TYPE_MROPE, LLAMA_ROPE_TYPE_IMROPE


def _metadata(api: Any, handle: Any) -> dict[str, str]:
    def key(index: int) -> str:
        return _text(lambda buffer, size: api.llama_model_meta_key_by_index(handle, index, buffer, size))

    def value(index: int) -> str:
        return _text(lambda buffer, size: api.llama_model_meta_val_str_by_index(handle, index, buffer, size))

    return {key(index): value(index) for index in range(api.llama_model_meta_count(handle))}


def _text(read: Callable[[Any, int], int]) -> str:
    """A string of any length from a function that fills a buffer and returns the length it wanted."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        wanted = read(buffer, size)
        if wanted < size:
            return buffer.value.decode("utf-8", "replace")
        size = wanted + 1


def check_compatible(spec: ModelSpec, model: LlamaModel) -> None:
    """Refuses what could not be run over a cached prompt, or would make ggml abort the process later.

    Raises:
        ModelUnsupportedError: they do not fit each other, or there is no KV cache, or nothing to predict.
    """
    if not model.has_cache:
        raise ModelUnsupportedError(
            f"llama.cpp has no KV cache for {model.path}; set runtime.prompt_attention to exact, or use another model"
        )
    check_vocabulary(spec, model)


def check_vocabulary(spec: ModelSpec, model: LlamaModel) -> None:
    """Refuses token ids that the model does not have.

    Raises:
        ModelUnsupportedError: they do not fit each other, or there is nothing to predict.
    """
    named = [*spec.banned_ids, *spec.end_ids, *spec.start_ids]
    named += (
        [spec.sampling.mask_id, spec.sampling.expand_id or 0, spec.sampling.delete_id or 0]
        if isinstance(spec.sampling, MaskSampling)
        else []
    )
    if isinstance(sampling := spec.sampling, MaskSampling):
        named += [sampling.mask_id, sampling.expand_id or 0, sampling.delete_id or 0]
    named += [spec.fim.prefix_id, spec.fim.suffix_id, spec.fim.middle_id] if spec.fim else []
    if spec.vocab_size != model.vocab_size or not all(0 <= token < model.vocab_size for token in named):
        raise ModelUnsupportedError(f"{model.path}: its description does not fit its vocabulary of {model.vocab_size}")
    has_lengths = spec.sampling is None or min(spec.canvas_lengths, default=0) > 0
    if len(set(spec.banned_ids)) >= model.vocab_size or not has_lengths:
        raise ModelUnsupportedError(f"{model.path}: its description leaves nothing to predict; use another model")
