"""The trial of a model: a child process opens a new file or checkpoint folder first, because it may crash.

llama.cpp ends its process when a file is not what it expects. The child (`main`) checks the weights, loads the model
and completes one line. A model that passed is recorded by the numbers and times of its files, with the runtime.
"""

import contextlib
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs

from dg_lsp import errors
from dg_lsp.backends.llamacpp.memory_estimate import split_parts
from dg_lsp.backends.llamacpp.model import checked_header
from dg_lsp.canvas.layout import Tokenizer
from dg_lsp.cli.printing import note
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.engine.request import FillRequest, FillResult, Priority
from dg_lsp.errors import DgLspError, ModelError, RequestError
from dg_lsp.gguf import map_file_errors
from dg_lsp.models.metadata import read_folder
from dg_lsp.models.registry import BUNDLED
from dg_lsp.runtime import find_runtime, installed_library
from dg_lsp.settings import ModelSettings, Settings
from dg_lsp.system import NEUTRAL_FOLDER, data_folder, is_present, python_command, python_environment

_SECONDS, _BYTES_PER_SECOND = 60.0, 20e6
"""Limit of a trial: this time, and the time to read the file at this rate."""
_FILL_SECONDS = 5.0
_ANNOUNCED_BYTES = 1 << 28
"""A smaller file is tested within about a second."""
_BEFORE = 'def area(width, height):\n    """The area of a rectangle."""\n    return '
_AFTER = "\n\n\nprint(area(2, 3))\n"
_DESCRIPTORS = Path("/proc/self/fd")
FileState = tuple[int, int, int, int]
"""Size, inode number, and times of the last changes of the content and of the inode."""


def trial_fill(engine: Engine, seconds: float = math.inf) -> FillResult:
    """Fills the end of a line of Python that every trained model completes."""
    request = FillRequest(Snapshot("trial.py", _BEFORE + _AFTER), len(_BEFORE), priority=Priority.INVOKED)
    return engine.fill(request, deadline=time.monotonic() + seconds)


@contextlib.contextmanager
def tested(path: Path, settings: ModelSettings) -> Iterator[Path]:
    """Tests a model that is not bundled, unless it has passed unchanged with this runtime and prompt attention.

    Yields the path with which llama.cpp reads the tested file even if another file takes its place meanwhile. Where
    there is no such path, and for a model of several files, a change is found at the end of the `with` block.

    Raises:
        ModelError: the child died or was not ready in time, or the model was replaced meanwhile.
        DgLspError: the error of the child.
    """
    if path in [model.path for model in BUNDLED]:
        yield path
        return
    states = _states(path)
    passed = f"{states} {_runtime()} {settings.prompt_attention}"
    record = data_folder() / "tested-models" / hashlib.sha256(passed.encode()).hexdigest()
    if not is_present(record):
        _test_in_child(path, settings, sum(size for size, *_ in states))
        _check_unchanged(path, states, _states(path))
        with contextlib.suppress(OSError):  # without a record it is tested again
            record.parent.mkdir(parents=True, exist_ok=True)
            record.touch()
    with contextlib.ExitStack() as stack:
        source = path
        if path.is_file() and len(states) == 1 and _DESCRIPTORS.exists():
            with map_file_errors(path):
                file = stack.enter_context(path.open("rb"))
            _check_unchanged(path, states, [_state(os.fstat(file.fileno()))])
            source = _DESCRIPTORS / str(file.fileno())
        yield source
    _check_unchanged(path, states, _states(path))


def _check_unchanged(path: Path, tested: list[FileState], present: list[FileState]) -> None:
    if tested != present:
        raise ModelError(f"{path} was replaced while it was tested or opened: try it again")


def _states(path: Path) -> list[FileState]:
    """The states of the files that a runtime opens, which change whenever a file does.

    These are all parts of a split model, and of a folder all that transformers reads. The number of the device is left
    out, because some systems number devices anew at each start.
    """
    with map_file_errors(path):
        if path.is_dir():
            files = [file for file in path.iterdir() if file.suffix in (".json", ".safetensors") and file.is_file()]
        else:
            files = split_parts(path)
        return [_state(file.stat()) for file in sorted(files)]


def _state(status: os.stat_result) -> FileState:
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _runtime() -> str:
    """The libraries that open models, with their versions."""
    installed = installed_library()
    overlay = "+overlay" if find_runtime().runtime else ""
    names = [f"{installed.version if installed else 'other'}{overlay}"]
    for name in ("torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            names.append(f"{name} {version(name)}")
    return " ".join(names)


def _test_in_child(path: Path, settings: ModelSettings, size: int) -> None:
    """Runs the child; raises as `tested` does."""
    read_folder(path) if path.is_dir() else checked_header(path)  # finds most broken models without a child
    if size >= _ANNOUNCED_BYTES:
        note(f"{path.name} is new here: it is tested once in a process of its own")
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    advice = "it is damaged, or made to do harm: use another file"
    settings_tree = attrs.asdict(attrs.evolve(settings, sampler=()))
    tree = {"path": str(path.absolute()), "seconds": seconds, "settings": settings_tree}
    try:
        process = subprocess.run(
            python_command("dg_lsp.cli.trial"),
            input=json.dumps(tree).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            env=python_environment(),
            cwd=NEUTRAL_FOLDER,
            timeout=seconds,
        )
        problem = json.loads(process.stdout)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{path} is not open after {seconds:.0f} s in a test process; {advice}") from error
    except ValueError as error:
        code = -process.returncode
        ending = signal.Signals(code).name if code in [*signal.Signals] else f"exit code {process.returncode}"
        if ending == "SIGKILL":  # by the system, where memory is short
            advice = "memory may be short: close other programs and run it again"
        raise ModelError(f"{path} ends its process ({ending}); {advice}") from error
    if problem:
        kind = getattr(errors, problem["error"])
        raise kind(problem["message"])


def main() -> int:
    """The child of a trial: tests the model that standard input names.

    Prints the error as JSON, or an empty object.
    """
    request = json.loads(sys.stdin.buffer.read())
    _limit_process(request["seconds"])
    problem = {}
    try:
        _open_and_fill(Path(request["path"]), request["settings"])
    except DgLspError as error:
        problem = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(problem), flush=True)  # noqa: T201
    os._exit(0)  # at once: closing the model would change no result


def _limit_process(seconds: float) -> None:
    """Makes this process leave no core dump, and the first that the system ends if memory is short.

    It also ends after the given time if its parent, which ends it otherwise, was ended itself.
    """
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        signal.alarm(int(seconds) + 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _open_and_fill(path: Path, model: dict[str, Any]) -> None:
    from dg_lsp.cli.loading import load_file, open_denoiser  # which imports this module

    settings: Settings = Settings(model=ModelSettings(**model))
    denoiser = open_denoiser(load_file(path, settings, check_tensors=True), settings.model)
    _test_tokenizer(denoiser.tokenizer)
    with contextlib.suppress(RequestError):  # a context that is too short for the line
        engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion, measure_costs(denoiser))
        trial_fill(engine, _FILL_SECONDS)


def _test_tokenizer(tokenizer: Tokenizer) -> None:
    """Encodes characters of every class and decodes all tokens. With a damaged vocabulary any of them may crash."""
    mixed = "".join(map(chr, random.Random(0).choices(range(0x110000), k=4096)))  # with lone surrogates
    characters = map(chr, (*range(256), 0x7FF, 0x800, 0xD800, 0xFFFF, 0x10000, 0x10FFFF))
    runs = (20_000 * char for char in "a1! \n\té中😀")
    spellings = b"".join(tokenizer.pieces()).decode("utf-8", "replace")
    for text in ("", *characters, *runs, mixed, spellings):
        tokenizer.decode(tokenizer.encode(text))
        tokenizer.special(text)


if __name__ == "__main__":
    sys.exit(main())
