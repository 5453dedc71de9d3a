"""The trial of a model: a child process opens a new file or checkpoint folder first, because it may crash.

llama.cpp ends its process when a file is not what it expects. The child (`main` in loading.py) checks the weights,
loads the model and completes one line. A model that passed is recorded by its SHA-256, with the runtime that opened it.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dg_lsp import errors
from dg_lsp.cli.printing import note
from dg_lsp.errors import ModelCrashedError, ModelError
from dg_lsp.gguf import map_file_errors
from dg_lsp.system import NEUTRAL_FOLDER, data_folder, python_command, python_environment, write_private

if TYPE_CHECKING:
    from dg_lsp.settings import ModelSettings

RECORD = "tested-models.json"
_MAX_RECORDED = 200
_SECONDS, _BYTES_PER_SECOND = 60.0, 20e6
"""Limit of a trial: this time, and the time to read the file at this rate."""
_START_SECONDS = 60.0
"""For Python to start in the child; the child ends itself after the limit of the trial."""
_ANNOUNCED_BYTES = 1 << 28
"""A smaller file is tested within about a second."""
_DESCRIPTORS = Path("/proc/self/fd")
_PART = re.compile(r"-\d{5}-of-(\d{5})$")


def check_model(path: Path, settings: "ModelSettings") -> Mapping[Path, str]:
    """Tests a model that is not bundled, unless the same content has passed with this runtime and prompt attention.

    Returns what identifies its files, for `opened` and `check_unchanged`; nothing for a model that needs no test.

    Raises:
        ModelCrashedError: the child died, or was not ready in time.
        ModelError: the model was replaced meanwhile.
        DgLspError: the error of the child.
    """
    from dg_lsp.backends.llamacpp.model import checked_header
    from dg_lsp.models.metadata import read_folder
    from dg_lsp.models.registry import BUNDLED

    if path in [model.path for model in BUNDLED]:
        return {}
    is_folder = path.is_dir()
    runtime = _transformers() if is_folder else _llama_cpp()
    if runtime is None:  # then nothing opens the folder
        return {}
    known = _Record.read()
    with map_file_errors(path):
        identities = _identities(path)
        size = sum(part.stat().st_size for part in identities)
        if is_new := not all(identity in known.digests for identity in identities.values()):
            read_folder(path) if is_folder else checked_header(path)  # finds most broken models without a child
    if is_new and size >= _ANNOUNCED_BYTES:
        note(f"{path.name} is new here: it is tested once in a process of its own")
    digests = [known.digest(part, identity) for part, identity in identities.items()]
    if is_folder:
        digests = [f"{part.name} {digest}\n" for part, digest in zip(identities, digests, strict=True)]
    key = " ".join((_digest(digests), runtime, settings.prompt_attention))
    if key not in known.passed:
        _try(path, settings, _SECONDS + size / _BYTES_PER_SECOND)
        check_unchanged(path, identities)
        known.passed.append(key)
    known.write()
    return identities


def check_unchanged(path: Path, identities: Mapping[Path, str]) -> None:
    """Raises ModelError if the files of a model are not those that `check_model` tested."""
    with map_file_errors(path):
        is_replaced = bool(identities) and identities != _identities(path)
    if is_replaced:
        raise _replaced(path)


def _replaced(path: Path) -> ModelError:
    return ModelError(f"{path} was replaced while it was tested or opened: try it again")


@contextlib.contextmanager
def opened(path: Path, identities: Mapping[Path, str]) -> Iterator[Path]:
    """The path with which llama.cpp reads the tested file, even if another file takes its place meanwhile.

    Where there is no such path, and for the files of a split model, it is the given one.
    """
    if [*identities] != [path] or not _DESCRIPTORS.exists():
        yield path
        return
    with map_file_errors(path):
        file = path.open("rb")
    with file:
        if _identity(os.fstat(file.fileno())) != identities[path]:
            raise _replaced(path)
        yield _DESCRIPTORS / str(file.fileno())


def _identities(path: Path) -> dict[Path, str]:
    """The files of a model, each with what changes whenever the file does, as far as the file system records it."""
    return {part: _identity(part.stat()) for part in _parts(path)}


def _identity(status: os.stat_result) -> str:
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, numbers))


def _parts(path: Path) -> list[Path]:
    """What a runtime opens: all parts of a split model; of a folder all that transformers reads."""
    if path.is_dir():
        return sorted(part for part in path.iterdir() if part.suffix in (".json", ".safetensors") and part.is_file())
    match = _PART.search(path.stem)
    if match is None:
        return [path]
    stem = path.stem[: match.start()]
    return [
        part
        for number in range(1, min(int(match[1]), 999) + 1)
        if (part := path.with_name(f"{stem}-{number:05}-of-{match[1]}.gguf")).is_file()
    ]


def _digest(digests: list[str]) -> str:
    joined = "".join(digests).encode("utf-8", "surrogateescape")  # a file name may be no UTF-8
    return digests[0] if len(digests) == 1 else hashlib.sha256(joined).hexdigest()


def _llama_cpp() -> str:
    """The llama.cpp that this process loads."""
    from dg_lsp.runtime import find_runtime, installed_library

    installed, changed = installed_library(), find_runtime().runtime
    version = installed.version if installed else "other"
    return f"{version}+{changed.kind}{changed.backend}" if changed else version


def _transformers() -> str | None:
    """The transformers and torch that this process imports; None where one of them is missing."""
    try:
        return f"transformers {version('transformers')} torch {version('torch')}"
    except PackageNotFoundError:
        return None


class _Record:
    """Digests of files by identity, and the files that passed. It only saves time: without it, all is tested again."""

    def __init__(self, digests: dict[str, str], passed: list[str]) -> None:
        self.digests = digests
        self.passed = passed
        self._before = self._tree()

    @classmethod
    def read(cls) -> "_Record":
        try:
            tree = json.loads((data_folder() / RECORD).read_text(encoding="utf-8"))
            return cls({str(key): str(value) for key, value in tree["digests"].items()}, list(map(str, tree["passed"])))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls({}, [])

    def digest(self, path: Path, identity: str) -> str:
        if identity not in self.digests:
            with map_file_errors(path), path.open("rb") as file:
                self.digests[identity] = hashlib.file_digest(file, "sha256").hexdigest()
        return self.digests[identity]

    def write(self) -> None:
        if (tree := self._tree()) == self._before:
            return
        with contextlib.suppress(OSError):
            data_folder().mkdir(parents=True, exist_ok=True)
            write_private(data_folder() / RECORD, tree)

    def _tree(self) -> dict[str, Any]:
        digests = dict(list(self.digests.items())[-_MAX_RECORDED:])
        return {"digests": digests, "passed": self.passed[-_MAX_RECORDED:]}


def _try(path: Path, settings: "ModelSettings", seconds: float) -> None:
    """Runs the child; raises as `check_model` does."""
    import attrs

    advice = "it is damaged, or made to do harm: use another file"
    given = attrs.asdict(attrs.evolve(settings, sampler=()))
    tree = {"path": str(path.absolute()), "seconds": seconds, "settings": given}
    run = functools.partial(subprocess.run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    try:
        done = run(
            python_command("dg_lsp.cli.loading"),
            input=json.dumps(tree).encode(),
            env=python_environment(),
            cwd=NEUTRAL_FOLDER,
            timeout=seconds + _START_SECONDS,
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise ModelCrashedError(f"{path} is not open after {seconds:.0f} s in a test process; {advice}") from error
    except ValueError as error:
        raise ModelCrashedError(f"{path} ends its process ({_ending(done.returncode)}); {advice}") from error
    if found:
        kind = getattr(errors, found["error"])
        raise kind(found["message"])


def _ending(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
