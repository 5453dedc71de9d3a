"""Compilers and what they say: found before they are needed, run with their output kept for who has to look."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dg_lsp.errors import ModelRuntimeError

Look = Callable[[str, float | None], object]
"""Told what is being done and, where that is known, which share of it is done."""

_COMPILER = "install a C++ compiler: on Debian and Ubuntu sudo apt-get install g++, on macOS xcode-select --install"
_ERROR = re.compile(r"\berror\b|undefined reference", re.IGNORECASE)


def find(names: Sequence[str], advice: str) -> str:
    """The path of the first of these programs; those of this Python's environment count.

    Raises:
        ModelRuntimeError: none of them is there; `advice` is what to do.
    """
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), own])
    found = next((program for name in names if (program := shutil.which(name, path=path))), None)
    if found is None:
        raise ModelRuntimeError(f"{' or '.join(names)} is missing: {advice}")
    return found


def compiler() -> str:
    """The C++ compiler: `CXX`'s, or the system's.

    Raises:
        ModelRuntimeError: there is none.
    """
    chosen = os.environ.get("CXX")
    return find([chosen] if chosen else ["c++", "g++", "clang++"], _COMPILER)


def run(command: Sequence[str], log: Path, look: Callable[[str], object] = lambda _line: None) -> None:
    """Runs a program to its end; each line that it says goes to `look` and, whatever comes, to the log.

    Raises:
        ModelRuntimeError: it failed; the message holds its first error and names the log.
    """
    with log.open("a", buffering=1, encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise ModelRuntimeError(f"{command[0]} cannot be run: {error.strerror}; install it again") from error
        said = []
        with process:
            try:
                for raw in process.stdout or ():
                    said.append(raw.decode("utf-8", "replace").rstrip())
                    file.write(f"{said[-1]}\n")
                    look(said[-1])
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        raise ModelRuntimeError(f"{Path(command[0]).name} failed: {reason(said)}; all it said is in {log}")


def reason(said: Sequence[str]) -> str:
    """What explains a failure: the first line that speaks of an error, with the next where it ends with a colon."""
    lines = [line.strip() for line in said if line.strip()] or ["it said nothing"]
    errors = (number for number, line in enumerate(lines) if _ERROR.search(line))
    first = next(errors, len(lines) - 1)
    last = first + 1 if lines[first].endswith(":") else first
    return " ".join(" ".join(lines[first : last + 1]).split())[:300]
