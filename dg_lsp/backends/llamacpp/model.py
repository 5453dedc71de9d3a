"""Weights and vocabulary of one GGUF file."""

import contextlib
import ctypes
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from dg_lsp import gguf
from dg_lsp.backends.llamacpp.library import Device, gpus, has_gpu, library, load_error, repack_buffer_type
from dg_lsp.backends.llamacpp.memory_estimate import (
    ADVICE,
    MAX_LAYERS,
    ModelSizes,
    check_fits,
    choose_gpus,
    estimate_load,
    num_gpu_layers,
    split_parts,
)
from dg_lsp.canvas.layout import TokenIds, checked_ids, concat, token_ids
from dg_lsp.canvas.spec import FimOrder, FimTokens, SpecialTokens
from dg_lsp.errors import BackendError, ModelError, ModelMemoryError, ModelUnsupportedError, escaped
from dg_lsp.gguf import GGUFHeader, copied, read_header, write_gguf
from dg_lsp.settings import ModelSettings

_MAPPED_BYTES = 256 << 20
"""A smaller file is read, not mapped: if another program truncates a mapped file, this process crashes."""
_SENTENCEPIECE = "llama"
_TOKENIZERS = (_SENTENCEPIECE, "gpt2", "gemma4", "none", "no_vocab", "")
"""Values of `tokenizer.ggml.model` that llama.cpp may see; `LlamaModel` refuses the last three, which have no
vocabulary. The others belong to encoders and to recurrent models, and llama.cpp throws through C if one is damaged."""


def checked_header(path: Path, source: Path | None = None) -> GGUFHeader:
    """The file's header, which is read from `source` if there is one.

    Raises:
        ModelError: the file has no weights, or would make llama.cpp abort.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a directory; name the GGUF file in it")
    header = read_header(path, source)
    if not header.tensors and split_parts(path) == [path]:  # the first part of a split model may have only metadata
        raise ModelError(f"{path} has a vocabulary but no weights; name a complete model")
    if (layers := ModelSizes.of(header).layers) > MAX_LAYERS:
        raise ModelUnsupportedError(f"{path} has {layers} layers, llama.cpp supports {MAX_LAYERS}; use another model")
    _check_tokenizer(header)
    return header


class _BufferOverride(ctypes.Structure):
    """`llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


_MATRIX = re.compile(r"blk\.\d+\.(attn_[qkv]|attn_output|ffn_gate|ffn_up|ffn_down)\.weight")
_PACKED_TYPES = ("Q4_0", "Q4_K", "IQ4_NL")
_PACKED_ROWS = 8  # are multiplied together


def _packed_matrices(header: GGUFHeader) -> bytes:
    """An expression for the names of the matrices that llama.cpp packs for AVX2 and AVX-512 where it does not use AMX.

    Packed, a token of a prompt takes a third less time. A kind of matrix counts if those of all layers can be packed.
    """
    kinds: dict[str, bool] = {}
    for name, tensor in header.tensors.items():
        if match := _MATRIX.fullmatch(name):
            can_pack = tensor.kind.name in _PACKED_TYPES and tensor.shape[0] % _PACKED_ROWS == 0
            kinds[match[1]] = kinds.get(match[1], True) and can_pack
    packed = "|".join(kind for kind, can_pack in kinds.items() if can_pack)
    return rf"^blk\.[0-9]+\.({packed})\.weight$".encode()


def _check_tokenizer(header: GGUFHeader) -> None:
    """Refuses vocabularies for which llama.cpp throws through C, which ends the process, when it reads some texts."""
    name = str(header.read("tokenizer.ggml.model", ""))
    if name not in _TOKENIZERS:
        problem = f"has a tokenizer of the kind {escaped(name[:40])!r}, which dg-lsp does not support"
        raise ModelUnsupportedError(f"{header.path} {problem}; use another model")
    if name != _SENTENCEPIECE or not isinstance(vocabulary := header.read("tokenizer.ggml.tokens"), list):
        return
    tokens = {*vocabulary}
    for byte in range(256):
        spellings = {f"<0x{byte:02X}>", *([chr(byte)] if 0 < byte < 128 else [])}
        if not spellings & tokens:
            raise ModelUnsupportedError(f"{header.path} has no token for the byte 0x{byte:02X}; use another model")


class LlamaModel:
    """A loaded model. Only for one thread, which also runs its contexts."""

    def __init__(
        self, path: Path, settings: ModelSettings, *, check_tensors: bool = False, source: Path | None = None
    ) -> None:
        """Loads a GGUF file; for the prompt attention `per_request` as an architecture with a KV cache.

        `check_tensors` reads all weights and refuses numbers that are not finite. `source` is another path of the file,
        by which llama.cpp opens it.

        Raises:
            ModelError: the file is missing, broken or not supported, or does not fit into memory.
            SettingsError: the settings name a GPU that is not there.
            BackendError: llama-cpp-python cannot be loaded.
        """
        header = checked_header(path, source)
        native = library()
        api = native.api
        self._api = api
        self.path = path
        self.before_close = contextlib.ExitStack()
        """Frees the contexts."""
        self.size_bytes = sum(part.stat().st_size for part in split_parts(path))
        params = api.llama_model_default_params()
        params.n_gpu_layers = self._place(header, settings)
        params.check_tensors = check_tensors
        # built for AMX: GCC optimises the tile set-up away, and the first pass over 8-bit weights would crash
        params.use_extra_bufts = b"AMX_INT8 = 1" not in api.llama_print_system_info()
        if not (params.use_extra_bufts or self.on_gpu):
            overrides = (_BufferOverride * 2)(_BufferOverride(_packed_matrices(header), repack_buffer_type()))
            params.tensor_buft_overrides = ctypes.addressof(overrides)  # ends with a null pointer
        # ends with a null pointer; the processor is implied
        devices = (ctypes.c_void_p * (len(self.gpu_numbers) + 1))(*(gpu.native for gpu in self.used_gpus))
        params.devices = ctypes.addressof(devices)
        alias = CACHED_ALIAS.get(header.architecture) if settings.prompt_attention == "per_request" else None
        is_mapped = self.size_bytes >= _MAPPED_BYTES
        self.mapped_bytes = self.weights.host if is_mapped and alias is None else 0
        """Weights that the system may drop from memory, so that every step would read them from the disk."""
        if not is_mapped:
            params.load_mode = api.LLAMA_LOAD_MODE_NONE
        with contextlib.ExitStack() as copies:
            opened = source or path
            if alias is not None:
                opened = copies.enter_context(aliased_copy(header, alias))
            native.problems.clear()
            self._handle: Any = api.llama_model_load_from_file(os.fsencode(opened), params)
        del devices
        if not self._handle:
            raise load_error(path, native.problems)
        self._read(header, params.n_gpu_layers)

    def _place(self, header: GGUFHeader, settings: ModelSettings) -> int:
        """Chooses the devices of the weights and checks their memory; returns the number of layers on GPUs.

        `auto` chooses the processor if the GPUs have too little free memory, as `selection.place` does.
        """
        wants_gpu = settings.gpu_layers != 0 and settings.device != "cpu"
        gpu_layers = settings.gpu_layers if wants_gpu and has_gpu() else 0
        self.on_gpu = gpu_layers != 0
        """Whether any layer is on a GPU."""
        self.weights, needed = estimate_load(header, gpu_layers=gpu_layers, context_length=settings.context_length)
        listed = gpus() if self.on_gpu else ()
        self.gpu_numbers = choose_gpus(settings.device, listed, needed.gpu) if wants_gpu else ()
        """Indices into `library.gpus()`; none on the processor."""
        try:
            check_fits(str(header.path), needed, ADVICE, gpus=self.used_gpus)
        except ModelMemoryError:
            if not self.on_gpu or settings.device != "auto":
                raise
            return self._place(header, attrs.evolve(settings, device="cpu"))
        return gpu_layers

    def _read(self, header: GGUFHeader, gpu_layers: int) -> None:
        """Reads the properties of the loaded model; refuses and frees one that cannot denoise a canvas."""
        api, handle = self._api, self._handle
        values = {key: value.read() for key, value in header.values.items() if value.kind != gguf.ARRAY}
        self.metadata: Mapping[str, str] = MappingProxyType({key: _text(value) for key, value in values.items()})
        """All keys of the file except arrays, with the values as strings."""
        description = ctypes.create_string_buffer(256)
        api.llama_model_desc(handle, description, len(description))
        num_millions = api.llama_model_n_params(handle) / 1e6  # llama.cpp's names are guesses by the number of layers
        counted = f"{num_millions / 1e3:.1f}B" if num_millions >= 1e3 else f"{num_millions:.1f}M"
        named = escaped(description.value.decode("utf-8", "replace"))
        self.description = re.sub(r" (\?B|[0-9.]+[MB]) ", f" {counted} ", named, count=1)
        vocabulary = api.llama_model_get_vocab(handle)
        self.vocab_size = int(api.llama_vocab_n_tokens(vocabulary))
        self.embedding_length = int(api.llama_model_n_embd(handle))
        self.has_cache = not api.llama_model_is_diffusion(handle)
        """llama.cpp has no KV cache for its own diffusion architectures."""
        self.sizes = replace(ModelSizes.of(header), vocab_size=self.vocab_size)  # a split model may lack the vocabulary
        if not self.has_cache:
            self.sizes = replace(self.sizes, kv_bytes_per_token=0)
        self.sliding_window = int(api.llama_model_n_swa(handle))
        """Positions that layers with a sliding window attend to; 0 without such layers."""
        self.gpu_share = min(1.0, num_gpu_layers(gpu_layers, self.sizes.layers) / max(1, self.sizes.layers))
        """Share of the layers on the GPU; their keys and values are there as well."""
        self.tokenizer = LlamaTokenizer(vocabulary, self.vocab_size)
        if problem := self._problem(api.llama_vocab_type(vocabulary)):
            self.close()
            raise ModelUnsupportedError(f"{self.path} {problem}")

    @property
    def native(self) -> Any:
        """llama.cpp's model; raises `BackendError` if it is closed."""
        if self._handle is None:
            raise BackendError("the model is closed; open it again")
        return self._handle

    @property
    def used_gpus(self) -> tuple[Device, ...]:
        """The GPUs that hold layers, with their present free memory."""
        listed = gpus() if self.gpu_numbers else ()
        return tuple(listed[number] for number in self.gpu_numbers)

    @property
    def where(self) -> str:
        """The GPUs that hold layers, for people: `GPU 0: RTX 4090, GPU 1: RTX 3060` or `processor`."""
        named = zip(self.gpu_numbers, self.used_gpus, strict=True)
        return ", ".join(f"GPU {number}: {gpu.name}" for number, gpu in named) or "processor"

    @property
    def can_move_keys(self) -> bool:
        """Whether cached keys can be moved to other positions."""
        prefix = f"{self.metadata.get('general.architecture', '')}.rope.scaling"
        kind = self.metadata.get(f"{prefix}.type", "none")
        # llama.cpp multiplies keys by the factor of such a scaling again whenever it moves them
        is_scaled = kind not in ("none", "linear") or f"{prefix}.attn_factor" in self.metadata
        rotations = (self._api.LLAMA_ROPE_TYPE_NORM, self._api.LLAMA_ROPE_TYPE_NEOX)  # of one dimension
        return self._api.llama_model_rope_type(self.native) in rotations and not is_scaled

    def close(self) -> None:
        """Frees the contexts and the weights. Idempotent."""
        self.before_close.close()
        if self._handle is not None:
            self.tokenizer.close()
            self._api.llama_model_free(self._handle)
            self._handle = None

    def _problem(self, vocab_type: int) -> str:
        """Why a model that llama.cpp loads cannot denoise a canvas; empty if it can."""
        api, handle = self._api, self._handle
        if vocab_type == 0 or not self.vocab_size:
            return "has no vocabulary; use a model with its tokenizer inside"
        if api.llama_model_n_ctx_train(handle) < 1:  # overflowed; such a context would take all memory
            return "has an impossible context length; use another model"
        if api.llama_model_has_encoder(handle) or not api.llama_model_has_decoder(handle):
            return "is an encoder, not a language model; use another model"
        if api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle):
            return "has recurrent memory, which cannot be cropped after a step; use another model"
        return ""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


_MAX_RUN = 2048
_RUNS = [re.compile(kind.replace("+", f"{{1,{_MAX_RUN}}}")) for kind in (r"[^\n]+|\n+", r"\s+|\S+")]
"""Lines, and words with the blanks between them, of at most so many characters. llama.cpp splits text by regular
expressions whose matching is recursive: 26,000 letters without a blank overflow the stack of a thread (8 MiB)."""


def _parts(text: str) -> list[str]:
    """The text, cut where a line, a word or a run of blanks is longer than `_MAX_RUN`."""
    if len(text) < _MAX_RUN:
        return [text]
    runs = (run for pattern in _RUNS for run in pattern.finditer(text))
    ends = {run.end() for run in runs if run.end() - run.start() == _MAX_RUN}
    return [text[start:end] for start, end in pairwise([0, *sorted({*ends, len(text)})])]


class LlamaTokenizer:
    """llama.cpp's vocabulary. Encodes text without adding tokens; a special token's spelling in a text stays text.

    The model owns and closes it. Only for the model's thread.
    """

    def __init__(self, vocabulary: Any, vocab_size: int) -> None:
        self._api = library().api
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._is_byte_pair = self._api.llama_vocab_type(vocabulary) == self._api.LLAMA_VOCAB_TYPE_BPE
        self._pieces: dict[int, bytes] = {}
        """Filled on demand: all tokens of a large vocabulary take half a second."""

    def encode(self, text: str) -> TokenIds:
        """Shape (N,). A lone surrogate, which UTF-8 does not allow, becomes `?`."""
        parts = _parts(text) if self._is_byte_pair else [text]  # SentencePiece has no expressions
        return concat(*(self._tokenized(part, with_specials=False) for part in parts))

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer.special`."""
        if len(spelling) > _MAX_RUN:
            return None
        ids = self._tokenized(spelling, with_specials=True)
        return int(ids[0]) if len(ids) == 1 else None

    def decode(self, ids: TokenIds) -> bytes:
        """Special tokens decode to nothing."""
        return b"".join(map(self._piece, ids.tolist()))

    def pieces(self) -> list[bytes]:
        """See `Tokenizer.pieces`."""
        return [*map(self._piece, range(self._vocab_size))]

    def specials(self) -> SpecialTokens:
        """Special tokens of the file; llama.cpp also recognises older keys and usual spellings."""
        self._check_open()
        api, vocabulary = self._api, self._vocabulary
        kinds = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_USER_DEFINED
        attributes = {i: api.llama_vocab_get_attr(vocabulary, i) for i in range(self._vocab_size)}
        special = [i for i, attribute in attributes.items() if attribute & kinds]
        control = [i for i in special if attributes[i] & api.LLAMA_TOKEN_ATTR_CONTROL]
        ends = {api.llama_vocab_eos(vocabulary), api.llama_vocab_eot(vocabulary), *control}
        start = api.llama_vocab_bos(vocabulary) if api.llama_vocab_get_add_bos(vocabulary) else -1
        return SpecialTokens(
            control_ids=tuple(control),
            end_ids=tuple(sorted(i for i in ends if i >= 0 and api.llama_vocab_is_eog(vocabulary, i))),
            start_ids=(start,) if start >= 0 else (),
            fim=self._fim(),
            spellings={self._spelling(i): i for i in special},
        )

    def _fim(self) -> FimTokens | None:
        functions = [getattr(self._api, f"llama_vocab_fim_{name}") for name in ("pre", "suf", "mid", "sep")]
        prefix, suffix, middle, separator = (int(function(self._vocabulary)) for function in functions)
        if min(prefix, suffix, middle) < 0 or len({prefix, suffix, middle}) < 3:
            return None
        fim = FimTokens(prefix, suffix, middle, FimOrder.PREFIX_FIRST)
        if separator < 0:
            return fim
        with_files = ("{files}", separator, "{path}\n", *fim.prompt)
        return replace(fim, file=(separator, "{path}\n{code}"), prompt_with_files=with_files)

    def close(self) -> None:
        """Called before the model is freed."""
        self._vocabulary = None

    def _spelling(self, token: int) -> str:
        return (self._api.llama_vocab_get_text(self._vocabulary, token) or b"").decode("utf-8", "replace")

    def _check_open(self) -> None:
        if self._vocabulary is None:
            raise BackendError("the model is closed; open it again")

    def _tokenized(self, text: str, *, with_specials: bool) -> TokenIds:
        self._check_open()
        # bytes that are not UTF-8 make llama.cpp throw through C, which ends the process
        raw = text.encode("utf-8", "replace")
        ids = np.empty(len(raw) + 8, dtype=np.int32)  # a token has at least one byte
        pointer = ids.ctypes.data_as(ctypes.POINTER(self._api.llama_token))
        count = self._api.llama_tokenize(self._vocabulary, raw, len(raw), pointer, len(ids), False, with_specials)
        if count < 0:
            raise BackendError("llama.cpp: the text cannot be tokenized; see `dg-lsp doctor`")
        return token_ids(ids[:count])

    def _piece(self, token: int) -> bytes:
        if token in self._pieces:
            return self._pieces[token]
        self._check_open()
        checked_ids("decode", [token], self._vocab_size)
        text = self._api.llama_vocab_get_text(self._vocabulary, token) or b""
        # llama.cpp throws through C here as well if the vocabulary is damaged
        if text.decode("utf-8", "replace").encode() != text:
            raise BackendError(f"token {token} of the model is not spelled in UTF-8; its file is damaged")
        # a piece is at most as long as its spelling
        buffer = ctypes.create_string_buffer(len(text) + 8)
        count = self._api.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, False)
        piece = self._pieces[token] = buffer.raw[: max(0, count)]
        return piece


CACHED_ALIAS = {"dream": "qwen2", "rnd1": "qwen3moe", "llada": "llama"}
"""Architectures without a KV cache, and architectures with the same layers and a cache."""


@contextlib.contextmanager
def aliased_copy(header: GGUFHeader, architecture: str) -> Iterator[Path]:
    """A temporary copy of a file as another architecture. It has no name, so that a killed process leaves no copy.

    Raises:
        ModelError: the model is split into several files, the system is Windows, or the copy does not fit on the disk.
    """
    path = header.path
    old = header.architecture
    advice = "set its prompt_attention (model.sampler) to exact"
    if header.read("split.count", 1) not in (0, 1):
        raise ModelUnsupportedError(f"{path} is one of several parts; join them, or {advice}")
    if os.name == "nt":
        raise ModelUnsupportedError(f"{path} cannot be opened as another architecture on Windows; {advice}")
    values = {
        f"{architecture}{key.removeprefix(old)}" if key.startswith(f"{old}.") else key: value
        for key, value in header.values.items()
        if key != f"{old}.attention.causal"  # llama.cpp would apply it to the prompt as well
    }
    values["general.architecture"] = gguf.text(architecture)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
            write_gguf(file, values, [copied(tensor) for tensor in header.tensors.values()])
            file.seek(0)
        except OSError as error:
            raise ModelError(f"no room for a copy of {path}: {error.strerror or error}; {advice}") from error
        yield Path(f"/dev/fd/{file.fileno()}")
