"""A test of the user decides between candidates: its command runs in a copy of the folder that has one of them.

The copy is made anew for each run, so that nothing that a candidate writes is left for the next one. `.git`,
`node_modules` and virtual environments are not copied: the command sees those of the folder and cannot change them.
"""

import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dg_lsp.context.exclusion import mask_secrets
from dg_lsp.context.window import Snippet, Snippets, SnippetSource
from dg_lsp.engine.request import Replacement
from dg_lsp.errors import PassingTestError, SandboxError, UsageError
from dg_lsp.sandbox import CommandResult, Sandbox

NUM_CANDIDATES = 8
"""Candidates that are tested at most."""
MAX_BYTES, MAX_FILES = 1 << 30, 100_000
"""Of a folder that is copied."""
MAX_FAILURE_CHARS = 20_000
_SHARED = (".git", "node_modules")
_CACHES = ("__pycache__",)
_COPIED = (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
_FAILURE = re.compile(r"^(?:_{3,} .+ _{3,}|(?:FAIL|ERROR): .+|--- FAIL: .+|---- .+ stdout ----|  ● .+)$", re.MULTILINE)
"""The line above a failure in the output of pytest, unittest, go test, cargo test and jest."""
_MESSAGE = re.compile(r"^(?:E  |FAILED |\w*(?:Error|Exception)\b|error\b).*", re.MULTILINE)
_NOT_RUN = (126, 127)
"""Exit codes of a shell for a command that is not executable, or not found."""

OptionT = TypeVar("OptionT", bound=Replacement)


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and its test."""

    text: str
    confidence: float
    passes: bool  # the command ended with the code 0
    outcome: str  # in words, with the message of a failure

    def __str__(self) -> str:
        return f"the candidate with confidence {self.confidence:.2f} {self.outcome}"


@dataclass(frozen=True, slots=True)
class Verification:
    """A command of the user, and the file whose candidates it tests."""

    command: str
    folder: Path  # in which the command runs; without links
    path: Path  # of the file, in the folder
    files: Mapping[Path, bytes]  # the present contents of this file and of others that differ from those on the disk
    sandbox: Sandbox
    seconds: float  # after which a run is killed
    is_stopped: Callable[[], bool] = bool  # a run ends with `CancelledError` once it is true

    def failure(self, report: Callable[[str], None]) -> Snippets:
        """The last failure of the test before any change, for the prompt; reports it in one line.

        Raises:
            PassingTestError: there is no failure.
            UsageError: the command is not found, or does not end in time.
            SandboxError: the folder cannot be copied, or a file with changes is in a part that is not copied.
        """
        result = self._run(self.files)
        if result.code == 0:
            raise PassingTestError("the test passes already, so there is nothing to fix: name one that fails")
        if result.code is None:
            raise UsageError(f"the test does not end within {self.seconds:g} s: name a faster one, or allow more time")
        if result.code in _NOT_RUN:
            raise UsageError(f"the test cannot be run, correct its command: {message_of(result.output)}")
        report(f"the test fails: {message_of(result.output)}")
        text = mask_secrets(last_failure(result.output))
        return Snippets((Snippet(SnippetSource.TEST, "output of the test", text),))

    def first_passing(
        self, options: Iterable[OptionT], data_of: Callable[[OptionT], bytes], report: Callable[[Trial], None]
    ) -> tuple[OptionT | None, list[Trial]]:
        """The most confident candidate that passes, and what was tried. `data_of` is the file with a candidate.

        Raises as `failure` does.
        """
        trials: list[Trial] = []
        for option in sorted(options, key=lambda option: -option.verdict.confidence)[:NUM_CANDIDATES]:
            result = self._run({**self.files, self.path: data_of(option)})
            outcome = f"fails after {result.seconds:.1f} s: {message_of(result.output)}"
            if result.code is None:
                outcome = f"does not end within {self.seconds:g} s"
            elif result.code == 0:
                outcome = f"passes after {result.seconds:.1f} s"
            trials.append(Trial(option.text, option.verdict.confidence, result.code == 0, outcome))
            report(trials[-1])
            if result.code == 0:
                return option, trials
        return None, trials

    def _run(self, files: Mapping[Path, bytes]) -> CommandResult:
        with tempfile.TemporaryDirectory(prefix="dg-lsp-") as parent:
            copy = Path(parent) / "copy"
            shared = _copied(self.folder, copy)
            for path, data in files.items():
                target = copy / path.relative_to(self.folder)
                if not target.parent.is_dir():
                    left_out = f"{', '.join(_SHARED)} and virtual environments are not copied"
                    raise SandboxError(f"the test cannot see unsaved changes of {path}, because {left_out}")
                target.unlink(missing_ok=True)  # it may be read-only
                target.write_bytes(data)
                shutil.copymode(path, target)
            return self.sandbox.run_command(
                self.command, self.folder, copy, seconds=self.seconds, read_only=shared, is_stopped=self.is_stopped
            )


def last_failure(output: str) -> str:
    """The last failure in the output of a test, with what follows it; the end of an output of another form."""
    text = _ESCAPES.sub("", output)
    starts = [match.start() for match in _FAILURE.finditer(text)]
    return text[starts[-1] if starts else 0 :][-MAX_FAILURE_CHARS:].strip("\n")


def message_of(output: str) -> str:
    """The line of an output that has the reason of a failure: the last one that looks so, or the last one with text."""
    failure = last_failure(output)
    messages = [match[0] for match in _MESSAGE.finditer(failure)] or failure.strip().split("\n")[-1:]
    return " ".join(messages[-1].split())[:200] or "it prints nothing"


def _copied(folder: Path, copy: Path) -> list[Path]:
    """Copies a folder; returns the folders in it that are not copied, because the command only reads them."""
    shared: list[Path] = []
    num_bytes = num_files = 0

    def left_out(directory: str, names: list[str]) -> list[str]:
        nonlocal num_bytes, num_files
        ignored = []
        for path in (Path(directory, name) for name in names):
            status = path.lstat()
            num_bytes += status.st_size
            if stat.S_ISDIR(status.st_mode) and (path.name in _SHARED or (path / "pyvenv.cfg").exists()):
                shared.append(path.relative_to(folder))
                ignored.append(path.name)
            elif path.name in _CACHES or stat.S_IFMT(status.st_mode) not in _COPIED:
                ignored.append(path.name)
        num_files += len(names)
        if num_bytes > MAX_BYTES or num_files > MAX_FILES:
            limits = (
                f"{MAX_BYTES >> 30} GiB or {MAX_FILES:,} files beside {', '.join(_SHARED)} and virtual environments"
            )
            raise SandboxError(f"{folder} has more than {limits}, which is too much to copy: use a smaller folder")
        return ignored

    try:
        shutil.copytree(folder, copy, symlinks=True, ignore=left_out)
    except OSError as error:
        reason = error.strerror or error.args[0][0][2]  # `shutil.Error` has a list of files
        raise SandboxError(f"{folder} cannot be copied for the test: {reason}") from error
    return shared
