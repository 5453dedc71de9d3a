"""pip and other programs: packages of an index, and llama.cpp's source out of the one of llama-cpp-python."""

import importlib
import importlib.util
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen

from dg_lsp.errors import ModelError
from dg_lsp.runtime import PACKAGE
from dg_lsp.system import NEUTRAL_FOLDER, file_sha256, python_command

# llama.cpp's source

ShowStep = Callable[[str, float | None], object]
"""Called with the name of the current step and its finished fraction, if that is known."""
_UNUSED = ("docs/", "models/", "benches/", "media/", "tests/", ".git/")  # most of llama.cpp's size
SOURCE_SHA256 = {"0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"}
"""Checksum of the source distribution, by version. pip runs code of a source, so only a known one is fetched."""


def unpack_llama_cpp(version: str, source: Path | None, folder: Path, show_step: ShowStep = lambda *_: None) -> Path:
    """Unpacks the source distribution of one version of llama-cpp-python; returns the folder of llama.cpp in it.

    `source` is the distribution or a folder with it; None fetches it with pip, which is possible only for versions with
    a known checksum.

    Raises ModelError: pip, the network or the distribution is missing; or the distribution is damaged, that of another
    version, or not the published one.
    """
    name = f"llama_cpp_python-{version}"
    packed = _fetch_source(version, folder, show_step) if source is None else source
    packed = packed / f"{name}.tar.gz" if packed.is_dir() else packed
    if not packed.is_file():
        command = f"pip download --no-deps --no-binary {PACKAGE} {PACKAGE}=={version}"
        raise ModelError(f"{packed} does not exist: fetch it with {command}")
    if (expected := SOURCE_SHA256.get(version)) is not None and file_sha256(packed) != expected:
        problem = f"{packed} is not the published source of {PACKAGE} {version}, its checksum differs"
        raise ModelError(f"{problem}: fetch it again")
    show_step("unpacking", None)
    root = f"{name}/vendor/llama.cpp/"
    unused = tuple(f"{root}{part}" for part in _UNUSED)
    try:
        with tarfile.open(packed) as archive:
            # missing before Python 3.11.4: so only regular files inside the folder are unpacked, without setuid
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _folder: member)
            files = [member for member in archive if member.isfile() and ".." not in member.name.split("/")]
            files = [file for file in files if file.name.startswith(f"{name}/") and not file.name.startswith(unused)]
            for file in files:
                file.mode &= 0o755
            archive.extractall(folder, files)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ModelError(f"{packed} is damaged: fetch it again") from error
    if not (folder / root).is_dir():
        problem = f"{packed} is not the source of {PACKAGE} {version}, which is installed"
        raise ModelError(f"{problem}: fetch the source of that version")
    return folder / root


def _fetch_source(version: str, folder: Path, show_step: ShowStep) -> Path:
    """Fetches the source distribution into `folder`, which it returns; pip compares the checksum before it opens it."""
    if version not in SOURCE_SHA256:
        problem = f"this release knows no checksum of the source of {PACKAGE} {version}"
        advice = f"install {PACKAGE} {max(SOURCE_SHA256)}, or fetch a source that you trust and pass --from"
        raise ModelError(f"{problem}: {advice}")
    show_step("fetching the source", None)
    requirements = folder / "source.txt"
    requirements.write_text(f"{PACKAGE}=={version} --hash=sha256:{SOURCE_SHA256[version]}\n", encoding="utf-8")
    # --no-binary :all: would also apply to the tools that the source needs: pip would compile CMake
    options = ("--require-hashes", "--no-deps", "--no-binary", PACKAGE, "--dest", str(folder))
    run_pip("download", "--requirement", str(requirements), *options)
    return folder


# other programs

_ERROR = re.compile(r"\berror\b(?!: subprocess-exited)|undefined reference", re.IGNORECASE)
"""In the output of pip, CMake or a compiler; pip's own line about a program that failed comes before its output."""


def run_pip(*arguments: str, environment: Mapping[str, str] = os.environ) -> None:
    """Runs pip's `download`, `wheel` or `install`; installs pip first where an environment has none, as those of uv.

    Raises ModelError: this Python cannot install pip, or pip failed.
    """
    if importlib.util.find_spec("pip") is None:
        if reason := run_program(python_command("ensurepip")):
            problem = f"{sys.executable} has no pip, and cannot install it ({reason})"
            raise ModelError(f"{problem}: install it, or fetch the files elsewhere and pass --from")
        importlib.invalidate_caches()
    options = ("--disable-pip-version-check", "--no-input", "--retries", "1", "--progress-bar", "off")
    if reason := run_program(python_command("pip", *arguments, *options), environment=environment):
        advice = "check the network and pip's settings (pip config list), or the folder of --from"
        raise ModelError(f"pip reports: {reason}; {advice}")


def run_program(
    command: Sequence[str],
    on_line: Callable[[str], object] = lambda _line: None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Runs a program in a neutral folder; returns the reason of a failure, otherwise the empty string.

    `on_line` receives each line of the output. The program is killed if this call is interrupted.

    Raises ModelError: it cannot be started.
    """
    output = []
    try:
        # pip and CMake start programs themselves, in the same folder: a folder of the user may contain a `json.py`
        variables = {**environment, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
        process = Popen(
            command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=NEUTRAL_FOLDER,
            env=variables,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise ModelError(f"{command[0]} cannot be run: {error.strerror}; install it again") from error
    with process:
        try:
            for line in process.stdout or ():
                output.append(line.strip())
                on_line(line.rstrip())
        except BaseException:
            process.kill()
            raise
    return _failure_reason(output) if process.returncode else ""


def _failure_reason(output: Sequence[str]) -> str:
    """The first line of the output with an error, and the next line if that line ends with a colon."""
    lines = [line for line in output if line] or ["there was no output"]
    errors = (number for number, line in enumerate(lines) if _ERROR.search(line))
    first = next(errors, len(lines) - 1)
    last = first + 1 if lines[first].endswith(":") else first
    return " ".join(" ".join(lines[first : last + 1]).split()).removeprefix("ERROR: ")[:300]
