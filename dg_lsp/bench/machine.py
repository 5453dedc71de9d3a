"""Where a measurement was made, and with what."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import dg_lsp

_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and versions; two measurements on equal machines may be compared."""

    cpu: str
    cores: int
    """That this process may use."""
    os: str
    python: str
    dg_lsp: str
    llama_cpp_python: str | None
    """None where it is not installed."""
    commit: str | None
    """Of dg-lsp, `-dirty` after it where files were changed; None outside a git checkout."""
    threads: int | None
    """CPU threads of a step; None where a server takes it."""

    @classmethod
    def here(cls, threads: int | None) -> "Machine":
        """This one."""
        return cls(
            cpu=_cpu(),
            cores=_num_cores(),
            os=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            dg_lsp=dg_lsp.__version__,
            llama_cpp_python=_version("llama-cpp-python"),
            commit=_commit(Path(dg_lsp.__file__).parents[1]),
            threads=threads,
        )

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> "Machine":
        """The machine of plain JSON values, as `dataclasses.asdict` gives them.

        Raises:
            TypeError: a key is missing or unknown.
        """
        return cls(**tree)

    def line(self) -> str:
        """For a person."""
        commit = f" ({self.commit})" if self.commit else ""
        runtime = f", llama-cpp-python {self.llama_cpp_python}" if self.llama_cpp_python else ""
        cores = f"{self.cores} core" + "s" * (self.cores != 1)
        threads = "" if self.threads is None else f", {self.threads} thread" + "s" * (self.threads != 1)
        return f"{self.cpu}, {cores}{threads}; {self.os}; dg-lsp {self.dg_lsp}{commit}{runtime}, Python {self.python}"


def _cpu() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == "model name"]
    return names[0] if names else platform.processor() or platform.machine()


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(root: Path) -> str | None:
    if not (root / ".git").exists():  # an installed package may lie inside of somebody else's checkout
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
