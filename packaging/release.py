"""`make release`: builds what is published into dist/, installs each in an empty environment and tests it there.

Needs the developer tools and the editors of `make editors`; uploads nothing.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_BYTES = 100 * 10**6  # the largest file that PyPI takes
DIST = ROOT / "dist"
PLUGIN, VSIX = ROOT / "editors/nvim", ROOT / "editors/vscode/dist/dg-lsp.vsix"
INSTALLED_TESTS = (
    "tests/e2e/test_bundled_model.py::test_the_tutorial_shows_grey_text_in_an_editor",
    "tests/e2e/test_http.py::test_the_bundled_model_completes_and_is_cached",
    "tests/editors/nvim/test_bundled_model.py::test_the_text_on_the_screen_is_the_text_on_disk_after_it_is_accepted",
    "tests/editors/vscode/test_completion.py::test_an_accepted_completion_is_saved",
    "tests/editors/vscode/test_installation.py",
)
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
SDIST_TESTS = ("tests/canvas", "tests/context", "tests/conventions/test_documents.py")


def main() -> int:
    """Builds and tests; returns the exit code."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "dg_lsp/__init__.py").read_text(encoding="utf-8"))[1]
    with tempfile.TemporaryDirectory(prefix="dg-lsp-release-") as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        archive = pack_plugin(version, folder)
        vsix = Path(shutil.copy(VSIX, DIST / f"dg-lsp-{version}.vsix"))
        run("bill of materials", sys.executable, "tests/dependencies.py", "sbom", DIST)
        python = install(wheel, folder)
        run("fill", python.with_name("dg-lsp"), "fill", ROOT / "samples/words.py:23:12", cwd=folder)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, **SAFELY)
        release = {
            "DG_LSP_RELEASE_PYTHON": str(python),
            "DG_LSP_RELEASE_PLUGIN": str(folder / f"dg-lsp.nvim-{version}"),
            "DG_LSP_RELEASE_VSIX": str(vsix),
        }
        run("server and editors", sys.executable, "-m", "pytest", "-q", *INSTALLED_TESTS, env=release)
        test_sdist(sdist, folder)
    write_checksums()
    return 0


def run(title: str, *command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Runs a step and prints its name and time; an error ends the release."""
    begun = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (env or {})
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, check=False)
    print(f"{title}: {'done' if done.returncode == 0 else 'failed'}, {time.monotonic() - begun:.0f} s", flush=True)
    if done.returncode:
        raise SystemExit(done.returncode)


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel, built from the source distribution, and the source distribution."""
    shutil.rmtree(DIST, ignore_errors=True)
    run("sdist and wheel", sys.executable, "-m", "build", "--outdir", DIST, ROOT, cwd=folder)
    [wheel], [sdist] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    for path in (wheel, sdist):
        if path.stat().st_size > MAX_BYTES:
            raise SystemExit(f"{path.name} has {path.stat().st_size / 1e6:.0f} MB: PyPI takes {MAX_BYTES / 1e6:.0f}")
    return wheel, sdist


def pack_plugin(version: str, folder: Path) -> Path:
    """The plugin as an archive whose folder can be put into a package path of Neovim."""
    name = f"dg-lsp.nvim-{version}"
    whole = Path(shutil.copytree(PLUGIN, folder / "packed" / name))
    shutil.copy(ROOT / "LICENSE", whole)
    archive = DIST / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(whole, name)
    return archive


def install(wheel: Path, folder: Path) -> Path:
    """The interpreter of a new environment with the locked dependencies and the wheel."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run("dependencies", *pip, "--require-hashes", "--requirement", ROOT / "requirements.lock", cwd=folder)
    run("wheel", *pip, "--no-deps", wheel, cwd=folder)
    return python


def test_sdist(sdist: Path, folder: Path) -> None:
    """Runs the tests that the source distribution has, from its own folder."""
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, **SAFELY)
    source = folder / sdist.name.removesuffix(".tar.gz")
    run("sdist", sys.executable, "-m", "pytest", "-q", *SDIST_TESTS, cwd=source, env={"PYTHONPATH": str(source)})


def write_checksums() -> None:
    """SHA256SUMS, in the form that `sha256sum --check` reads."""
    files = sorted(path for path in DIST.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")


if __name__ == "__main__":
    sys.exit(main())
