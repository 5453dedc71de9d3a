"""Fetches the pinned wheels and reads Python sources out of them. Knows licences only as strings it found."""

import subprocess
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.system import python_command
from dg_lsp.training.licences import stated_licence

PACKAGES = Path(__file__).with_name("packages.toml")
STDLIB = "stdlib"


@dataclass(frozen=True, slots=True)
class Pins:
    """What packages.toml says: exact versions by package, and the packages held out for validation."""

    versions: dict[str, str]
    held_out: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on disk with what its METADATA states."""

    package: str
    version: str
    licence: str
    path: Path


def read_pins(path: Path = PACKAGES) -> Pins:
    """The package list of this repository."""
    table = tomllib.loads(path.read_text())
    return Pins(dict(table["versions"]), frozenset(table["held_out"]))


def fetch(pins: Pins, folder: Path, num_parallel: int = 4) -> list[str]:
    """Downloads what `folder` lacks, one pip call per package; returns the packages that could not be had."""
    folder.mkdir(parents=True, exist_ok=True)
    have = {(wheel.package, wheel.version) for wheel in read_wheels(folder)}
    missing = [item for item in pins.versions.items() if item not in have]

    def download(item: tuple[str, str]) -> str | None:
        name, version = item
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        command = python_command("pip", "download", *options, f"{name}=={version}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else name

    with ThreadPoolExecutor(num_parallel) as pool:
        return [name for name in pool.map(download, missing) if name]


def read_wheels(folder: Path) -> list[Wheel]:
    """Every wheel in `folder`, by package name."""
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            # the shortest: a wheel may carry the metadata of what it vendors
            names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
            metadata = archive.read(min(names, key=len)).decode("utf-8", "replace") if names else ""
        package, version = path.name.split("-")[:2]
        wheels.append(Wheel(package.lower().replace("_", "-"), version, stated_licence(metadata), path))
    return wheels


def wheel_sources(path: Path) -> Iterator[tuple[str, bytes]]:
    """(path inside the wheel, bytes) of every Python file."""
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py"):
                yield name, archive.read(name)


def stdlib_sources() -> Iterator[tuple[str, bytes]]:
    """(path, bytes) of every Python file of the running interpreter's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), path.read_bytes()
