"""Converts models to GGUF: a DiffusionGemma here, other checkpoints with llama.cpp's own script.

A DiffusionGemma becomes two files: one that llama.cpp runs as a Gemma 4, and a side file with the weights of the
self-conditioning. Its sources are checkpoint folders and the published `diffusion-gemma` files, which are those of
llama.cpp's pull request 24423. The `dg.*` keys are those of docs/models.md.

The script runs in a Python environment that is made once. Script and packages have the versions of the installed
llama-cpp-python. A checkpoint's Python files are never executed.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dg_lsp import errors, gguf
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.models import checkpoint, download, packages
from dg_lsp.models.registry import CONFIGURATION, STANDARD_NAMES
from dg_lsp.runtime import require_library
from dg_lsp.system import data_folder, file_sha256, is_present, replacement

_MAIN_EMBEDDING = "token_embd.weight"
_SIDE_KEY, _SIDE_SHA256_KEY = "dg.self_conditioning", "dg.self_conditioning.sha256"


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The contents of both files; the weights are read when they are written."""

    values: Mapping[str, gguf.Value]  # the metadata of the main file, except for the two keys of its side file
    main: tuple[gguf.Tensor, ...]
    side: tuple[gguf.Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return self.main_size + sum(tensor.size for tensor in self.side)

    @property
    def main_size(self) -> int:
        """Bytes of the weights in the main file."""
        return sum(tensor.size for tensor in self.main)

    @property
    def embedding_type(self) -> gguf.TensorType:
        """Number format of the token embeddings."""
        return next(tensor.kind for tensor in self.main if tensor.name == _MAIN_EMBEDDING)


def _make_parts(
    name: object,
    values: Mapping[str, gguf.Value],
    main: Mapping[str, gguf.Tensor],
    side: Mapping[str, gguf.Tensor],
    num_layers: int,
    also_required: Iterable[str] = (),
) -> ModelParts:
    """Checks that all tensors are there; `attn_v` and the scale of layers may be missing."""
    optional = {"attn_v.weight", f"{checkpoint.DECODER_SCALE}.weight"}
    required = [_MAIN_EMBEDDING, "output_norm.weight", "rope_freqs.weight", *also_required]
    of_layer = [tensor for tensor in checkpoint.LAYER_TENSORS if tensor not in optional]
    required += [f"blk.{i}.{tensor}" for i in range(num_layers) for tensor in of_layer]
    missing = [tensor for tensor in required if tensor not in main]
    missing += [tensor for tensor in checkpoint.SELF_CONDITIONING if tensor not in side]
    if missing:
        problem = f"{name} lacks {len(missing)} tensors of a DiffusionGemma ({missing[0]})"
        raise errors.ModelError(f"{problem}: download or export it again")
    return ModelParts(values, tuple(main.values()), tuple(side[tensor] for tensor in checkpoint.SELF_CONDITIONING))


def is_diffusion_gemma(folder: Path) -> bool:
    """Whether a checkpoint is a DiffusionGemma, which llama.cpp's script does not convert."""
    return checkpoint.read_json(folder / CONFIGURATION).get("model_type") == checkpoint.MODEL_TYPE


# GGUF files

_OLD, _NEW = f"{checkpoint.DIFFUSION_ARCHITECTURE}.", f"{checkpoint.ARCHITECTURE}."
_CANVAS_KEYS = ("diffusion.canvas_length", f"{_OLD}diffusion.canvas_length", f"{_OLD}canvas_length")
_DROPPED_KEYS = (
    "general.alignment",  # the new file has the default alignment
    f"{_OLD}attention.causal",  # false there; prompts are encoded causally, and the runtime sets it for each pass
    *_CANVAS_KEYS,
)
_DEFAULT_VALUES = {
    f"{_NEW}attention.shared_kv_layers": gguf.uint32(0),
    f"{_NEW}embedding_length_per_layer_input": gguf.uint32(0),
}
"""Keys that llama.cpp's loader requires and the source may lack."""


def read_parts(source: Path, *, is_quantized: bool = False) -> ModelParts:
    """The parts of a checkpoint folder or a GGUF file, which are quantized afterwards if `is_quantized`.

    Raises:
        UsageError: the weights to be quantized are quantized already.
        InputFileError: files of the checkpoint are missing.
        ModelError: a file is missing, damaged, cut short, or lacks tensors or metadata.
        ModelUnsupportedError: another model, or a DiffusionGemma that llama.cpp's graph does not compute.
    """
    parts = convert_checkpoint(source) if source.is_dir() else read_gguf(source)
    if is_quantized and any(tensor.kind.block_weights > 1 for tensor in parts.main):
        problem = f"{source} is quantized already, and another type would lose accuracy"
        raise errors.UsageError(f"{problem}: leave out --type, or name a file in BF16 or F16")
    return parts


def read_gguf(path: Path) -> ModelParts:
    """The parts of a published `diffusion-gemma` file."""
    header = gguf.read_header(path)
    if header.architecture == checkpoint.ARCHITECTURE and _SIDE_KEY in header.values:
        raise errors.ModelUnsupportedError(f"{path} is converted already: use it as it is")
    if header.architecture != checkpoint.DIFFUSION_ARCHITECTURE:
        architecture = header.architecture or "unknown"
        problem = f"{path} is of architecture {architecture}, not {checkpoint.DIFFUSION_ARCHITECTURE}"
        raise errors.ModelUnsupportedError(f"{problem}: use it as it is, or name a DiffusionGemma")
    if header.read("split.count", 1) != 1:
        raise errors.ModelUnsupportedError(f"{path} is one of several files: join them with llama-gguf-split --merge")
    main: dict[str, gguf.Tensor] = {}
    side: dict[str, gguf.Tensor] = {}
    encoder: dict[str, gguf.Tensor] = {}
    for tensor in (gguf.copied(stored) for stored in header.tensors.values()):
        stem = tensor.name.removesuffix(".weight")
        side_name = stem.replace("self_cond_", "self_cond.", 1)
        if side_name in checkpoint.SELF_CONDITIONING:
            side[side_name] = replace(tensor, name=side_name)
        elif stem.endswith(f".{checkpoint.ENCODER_SCALE}"):
            decoder_name = tensor.name.replace(checkpoint.ENCODER_SCALE, checkpoint.DECODER_SCALE)
            encoder[decoder_name] = tensor
        else:
            main[tensor.name] = tensor
    num_layers = _read_number(header, f"{_OLD}block_count")
    parts = _make_parts(path, _convert_values(header), main, side, num_layers, encoder)
    for name, scale in encoder.items():
        _check_shared(path, scale, main[name])
    return parts


def _convert_values(header: gguf.GGUFHeader) -> dict[str, gguf.Value]:
    kept = {
        key.replace(_OLD, _NEW, 1) if key.startswith(_OLD) else key: value
        for key, value in header.values.items()
        if key not in _DROPPED_KEYS and not key.startswith("split.")
    }
    kept["general.architecture"] = gguf.text(checkpoint.ARCHITECTURE)
    canvases = (_read_number(header, key) for key in _CANVAS_KEYS if key in header.values)
    canvas = next(canvases, checkpoint.TRAINED_CANVAS)
    context_length = _read_number(header, f"{_OLD}context_length")
    try:
        sampler_values = checkpoint.diffusion_metadata(UniformSampling(), header.values, canvas, context_length)
    except checkpoint.DAMAGE as error:
        problem = f"{header.path}: its vocabulary is missing or invalid ({error})"
        raise errors.ModelError(f"{problem}: download or export it again") from error
    return {**_DEFAULT_VALUES, **kept, **sampler_values}


def _read_number(header: gguf.GGUFHeader, key: str) -> int:
    value = header.read(key)
    if not isinstance(value, int) or value < 1:
        raise errors.ModelError(f"{header.path}: {key} is missing or invalid: download or export it again")
    return value


# checkpoints

_ALWAYS_F32 = ("ffn_gate_inp.weight",)
"""The router: it is small, and rounding it would send tokens to other experts."""


def convert_checkpoint(folder: Path) -> ModelParts:
    """The parts of a DiffusionGemma checkpoint, with matrices in the stored number format."""
    config = checkpoint.read_json(folder / CONFIGURATION)
    saved = checkpoint.read_checkpoint(folder)
    if checkpoint.EMBEDDING not in saved:
        problem = f"{folder} holds no {checkpoint.EMBEDDING}"
        raise errors.ModelUnsupportedError(f"{problem}: name the folder of a DiffusionGemma checkpoint")
    try:
        sizes, divisors = checkpoint.read_geometry(config)
        described = sizes | checkpoint.read_vocabulary(folder, config)
    except checkpoint.DAMAGE as error:
        problem = f"{error} is missing or not what llama.cpp's {checkpoint.ARCHITECTURE} graph computes"
        raise errors.ModelUnsupportedError(f"{folder}/{CONFIGURATION}: {problem}: use another checkpoint") from error
    tensors = [_convert_tensor(name, saved[key]) for key in sorted(saved) if (name := checkpoint.gguf_name(key))]
    for key in [key for key in saved if key.startswith(checkpoint.ENCODER)]:
        if decoder := saved.get(key.replace(checkpoint.ENCODER, checkpoint.DECODER, 1)):
            _check_shared(folder, _convert_tensor(key, saved[key]), _convert_tensor(key, decoder))
    side = {tensor.name: tensor for tensor in tensors if tensor.name in checkpoint.SELF_CONDITIONING}
    main = {tensor.name: tensor for tensor in tensors if tensor.name not in side}
    main["rope_freqs.weight"] = gguf.vector("rope_freqs.weight", divisors)
    values: dict[str, gguf.Value] = {
        "general.architecture": gguf.text(checkpoint.ARCHITECTURE),
        "general.type": gguf.text("model"),
        "general.name": gguf.text(checkpoint.name_of(folder)),
        **described,
    }
    return _make_parts(folder, values, main, side, len(config["text_config"]["layer_types"]))


def _check_shared(source: Path, encoder: gguf.Tensor, decoder: gguf.Tensor) -> None:
    """The encoder uses the decoder's weights. Some tensors are saved twice, but llama.cpp has one of each."""
    is_alike = (encoder.shape, encoder.kind) == (decoder.shape, decoder.kind)
    if not is_alike or any(block != shared for block, shared in zip(encoder.blocks(), decoder.blocks(), strict=True)):
        reason = f"llama.cpp's {checkpoint.ARCHITECTURE} graph has one for both"
        problem = f"{source}: {encoder.name} differs from the decoder's, and {reason}"
        raise errors.ModelUnsupportedError(f"{problem}: use the checkpoint with the transformers backend")


def _convert_tensor(name: str, saved: gguf.StoredTensor) -> gguf.Tensor:
    tensor = gguf.copied(saved, name)
    is_matrix = len(saved.shape) > 1 and not name.endswith(_ALWAYS_F32)
    if is_matrix or saved.kind is gguf.F32:
        return tensor
    return replace(tensor, kind=gguf.F32, blocks=lambda: (_widened(block, saved.kind) for block in tensor.blocks()))


def _widened(block: bytes | memoryview, kind: gguf.TensorType) -> bytes:
    """Numbers of 16 bits in single precision."""
    if kind is gguf.BF16:  # it has the upper 16 bits of a float32
        return (np.frombuffer(block, "<u2", len(block) // 2).astype("<u4") << 16).tobytes()
    return np.frombuffer(block, "<f2", len(block) // 2).astype("<f4").tobytes()


# output

_MARGIN = 64 << 20  # bytes for metadata and padding
_OTHER_NAME = "pass another name with -o"

Quantize = Callable[[Path, Path], object]
"""Writes a quantized copy of the first file to the second path."""


def side_path(target: Path) -> Path:
    """The path of a main file's side file."""
    return target.with_name(target.name.removesuffix(".gguf") + checkpoint.SIDE_SUFFIX)


def check_target(target: Path, needed: int) -> None:
    """Checks name and folder of the output, and that there is space for `needed` bytes of weights.

    Raises:
        UsageError: the file exists, its name does not end in .gguf, or the folder does not exist.
        ModelError: the disk is too full.
    """
    if not target.name.endswith(".gguf") or target.name.endswith(checkpoint.SIDE_SUFFIX):
        raise errors.UsageError(f"{target} is not a name for a model: let it end in .gguf")
    for path in (target, side_path(target)):
        if path.exists():
            raise errors.UsageError(f"{path} exists already: remove it, or {_OTHER_NAME}")
    if not target.parent.is_dir():
        raise errors.InputFileError(f"{target.parent} is not a folder: create it, or {_OTHER_NAME}")
    download.check_space(target.parent, needed + _MARGIN, _OTHER_NAME)


def write_model(
    parts: ModelParts,
    target: Path,
    on_progress: gguf.ProgressCallback = lambda _: None,
    quantize: Quantize | None = None,
) -> None:
    """Writes both files under temporary names and renames them at the end; an interruption leaves no files.

    Raises:
        ModelError: the source ended too early, or there is no space or no permission to write.
        DgLspError: errors of `quantize`.
    """
    side = side_path(target)
    with new_file(side) as new_side:
        side_values = {"general.architecture": gguf.text(checkpoint.SIDE_ARCHITECTURE)}
        with new_side.open("wb") as file:
            gguf.write_gguf(file, side_values, parts.side, on_progress)
        names = {_SIDE_KEY: gguf.text(side.name), _SIDE_SHA256_KEY: gguf.text(file_sha256(new_side))}
        with new_file(target, quantize) as new, new.open("wb") as file:
            gguf.write_gguf(file, {**parts.values, **names}, parts.main, on_progress)


@contextlib.contextmanager
def new_file(target: Path, quantize: Quantize | None = None) -> Iterator[Path]:
    """A temporary file in the folder of `target`; at the end it is quantized and renamed, after an error removed."""
    with download.map_disk_errors(target, _OTHER_NAME), replacement(target) as new:
        yield new
        if quantize:
            quantized = new.with_name(f"quantized-{new.name}")
            quantize(new, quantized)
            quantized.replace(new)
        with new.open("r+b") as file:
            os.fsync(file.fileno())


# llama.cpp's script

_SCRIPT = "convert_hf_to_gguf.py"
_REQUIREMENTS = ("requirements-convert_legacy_llama.txt", "requirements-convert_hf_to_gguf.txt")
"""The second file includes the first."""
_TORCH = "torch==2.13.0"
_REPLACED = ("#", "-", "torch", "gguf")
"""Starts of lines in the requirements that are not installed: our version of torch, and the gguf of the source."""
_WRITTEN = re.compile(r"Writing: +(\d+)%")

_RENAMING = """
import runpy, sys
from conversion.base import ModelBase
original = ModelBase.filter_tensors.__func__
def renamed(cls, item):
    name, read = item
    name = "lm_head.weight" if name == "diffusion_head.weight" else name.replace("encoder.", "model.", 1)
    return original(cls, (name, read))
ModelBase.filter_tensors = classmethod(renamed)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the script with the names of a Ministral's tensors for those of a Nemotron-Labs-Diffusion."""


@contextlib.contextmanager
def _without_code(source: Path, place: Path) -> Iterator[Path]:
    """A folder in `place` with links to the checkpoint's files, but without Python files and references to them."""
    with tempfile.TemporaryDirectory(dir=place, prefix=".dg-lsp-") as name:
        folder = Path(name) / checkpoint.name_of(source)
        folder.mkdir()
        for path in source.resolve().iterdir():
            lower = path.name.casefold()  # macOS and Windows find a file under any case
            if lower in (CONFIGURATION, "tokenizer_config.json"):
                values = checkpoint.read_json(path)
                values.pop("auto_map", None)
                text = json.dumps(values)
                for own, standard in STANDARD_NAMES.items():
                    text = text.replace(f'"{own}"', f'"{standard}"')
                (folder / path.name).write_text(text, encoding="utf-8")
            elif path.is_file() and not lower.endswith(download.CODE):
                _link(path, folder / path.name)
        yield folder


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError:  # Windows without the permission: a hard link needs none
        os.link(source, target)


def has_environment() -> bool:
    """Whether the Python environment of llama.cpp's script is there already."""
    return is_present(_python(_environment_folder()))


def _environment_folder() -> Path:
    return data_folder() / "conversion" / require_library().version


def _make_environment(show_step: packages.ShowStep) -> Path:
    """The folder with llama.cpp's script and a Python environment for it, made at the first call."""
    folder = _environment_folder()
    if has_environment():
        return folder
    with download.working_folder(folder) as work:
        new = packages.unpack_llama_cpp(folder.name, None, work, show_step)
        show_step("creating a Python environment", None)
        venv.create(new / "venv", symlinks=sys.platform != "win32")  # a copied Python may not find its libpython
        lines = [line for name in _REQUIREMENTS for line in (new / "requirements" / name).read_text().splitlines()]
        requirements = [_TORCH, *(line for line in lines if line.strip() and not line.startswith(_REPLACED))]
        show_step("installing its packages", None)
        packages.run_pip("--python", str(_python(new)), "install", *requirements)
        if folder.exists():  # its Python was removed
            folder.rename(work / "replaced")
        new.rename(folder)
    return folder


def _python(folder: Path) -> Path:
    return folder / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def convert_with_script(
    source: Path, target: Path, kind: str, show_step: packages.ShowStep, quantize: Quantize | None = None
) -> None:
    """Converts a checkpoint with llama.cpp's script; `kind` is F32, F16, BF16 or `auto`.

    The script fetches nothing, and does not see the checkpoint's Python files. An interruption leaves no files.

    Raises:
        ModelUnsupportedError: the script cannot convert this checkpoint.
        ModelError: llama-cpp-python, pip, the network, disk space, or the permission to write there is missing.
        DgLspError: errors of `quantize`.
    """
    environment = _make_environment(show_step)
    variables = {**os.environ, "PYTHONPATH": str(environment), "HF_HUB_OFFLINE": "1"}
    with new_file(target.absolute(), quantize) as new, _without_code(source, new.parent) as folder:
        files = [str(folder), "--outfile", str(new), "--outtype", kind.lower()]
        show_step("reading the checkpoint", None)

        def show_progress(line: str) -> None:
            if match := _WRITTEN.match(line):
                show_step("converting", int(match[1]) / 100)

        is_nemotron = checkpoint.read_json(source / CONFIGURATION).get("model_type") == "nemotron_labs_diffusion"
        renaming = ("-c", _RENAMING) if is_nemotron else ()
        command = [str(_python(environment)), "-P", *renaming, str(environment / _SCRIPT), *files]
        if reason := packages.run_program(command, show_progress, variables):
            problem = f"llama.cpp's {_SCRIPT} cannot convert {source}: {reason.removeprefix('ERROR:hf-to-gguf:')}"
            raise errors.ModelUnsupportedError(f"{problem}; use a published GGUF of this model")
        gguf.read_header(new)
        if quantize:
            show_step("quantizing", None)
