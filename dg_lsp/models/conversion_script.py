"""Converts checkpoints with llama.cpp's own script, in a Python environment that is made once.

The script and the versions of its packages are those of the installed llama-cpp-python. A checkpoint's Python files
are never executed.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from dg_lsp import errors, gguf
from dg_lsp.models import checkpoint, download, packages
from dg_lsp.models.convert import Quantize, new_file
from dg_lsp.models.registry import CONFIGURATION, STANDARD_NAMES
from dg_lsp.runtime import require_library
from dg_lsp.system import data_folder

_SCRIPT = "convert_hf_to_gguf.py"
_SCRIPT_PARTS = (_SCRIPT, "conversion/", "gguf-py/", "requirements/")
_REQUIREMENTS = ("requirements-convert_legacy_llama.txt", "requirements-convert_hf_to_gguf.txt")
"""The second file includes the first."""
_TORCH = "torch==2.13.0"
_REPLACED = ("#", "-", "torch", "gguf")
"""Starts of lines in the requirements that are not installed: our version of torch, and the gguf of the source."""
SCRIPT_TYPES = ("F32", "F16", "BF16")
"""Number formats that the script writes; llama.cpp quantizes to the others afterwards."""
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
        folder = Path(name) / source.resolve().name
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
    return _python(_environment_folder()).exists()


def _environment_folder() -> Path:
    return data_folder() / "conversion" / require_library().version


def _make_environment(show_step: packages.ShowStep) -> Path:
    """The folder with llama.cpp's script and a Python environment for it, made at the first call."""
    folder = _environment_folder()
    if has_environment():
        return folder
    with download.working_folder(folder) as work:
        new = packages.unpack_llama_cpp(folder.name, None, work, _SCRIPT_PARTS, show_step)
        show_step("creating a Python environment", None)
        venv.create(new / "venv")
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
    source: Path,
    target: Path,
    kind: str,
    show_step: packages.ShowStep,
    quantize: Quantize | None = None,
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
        if reason := packages.run(command, show_progress, variables):
            problem = f"llama.cpp's {_SCRIPT} cannot convert {source}: {reason.removeprefix('ERROR:hf-to-gguf:')}"
            raise errors.ModelUnsupportedError(f"{problem}; use a published GGUF of this model")
        gguf.read_header(new)
        if quantize:
            show_step("quantizing", None)
