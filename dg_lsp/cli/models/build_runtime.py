"""`dg-lsp models build-runtime`: the llama.cpp that DiffusionGemma needs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dg_lsp.models.runtime.tools import Look


def build_runtime(
    backend: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Build all of llama.cpp for cpu, cuda, metal, vulkan, hip or sycl."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="llama-cpp-python's source distribution, packed or unpacked; offline."
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Build all of llama.cpp, even where one class will do.")
    ] = False,
) -> int:
    """Build the llama.cpp that DiffusionGemma needs, from the source of the one that is installed."""
    import time

    from dg_lsp.errors import UsageError
    from dg_lsp.models.runtime.build import Wish, build
    from dg_lsp.runtime import PACKAGE, find_runtime, installed

    if source is not None and not source.exists():
        raise UsageError(f"{source} does not exist: name {PACKAGE}'s source distribution, or a folder with it")
    here = installed()
    version = here.version if here else ""
    wish = Wish(source, backend, whole)
    if not wish.whole_backend and here and _computes_rightly(None):
        typer.echo(f"nothing to build: {PACKAGE} {version} computes DiffusionGemma as it is", err=True)
        return 0
    start = time.monotonic()
    with _progress() as look:
        runtime = build(wish, _computes_rightly, look)
    if runtime is None:
        typer.echo(f"nothing to build: the source of {PACKAGE} {version} has the change already", err=True)
        return 0
    what = (
        f"all of llama.cpp, for {runtime.backend}"
        if runtime.backend
        else "one class, in front of the installed library"
    )
    typer.echo(f"built and tried in {time.monotonic() - start:.0f} s ({what}, {PACKAGE} {version})", err=True)
    if note := find_runtime().note:
        typer.echo(f"it will not be loaded as things are: {note}", err=True)
    typer.echo(runtime.folder)
    return 0


def _computes_rightly(folder: Path | None) -> bool:
    """Asked of the runtime in this folder, or of the installed library, in a process of its own: a library may end it.

    Raises:
        ModelRuntimeError: it cannot be loaded, or it ended the process.
    """
    import os
    import subprocess
    import sys

    import dg_lsp
    from dg_lsp.errors import ModelRuntimeError
    from dg_lsp.runtime import STOCK, VARIABLE

    environment = {**os.environ, VARIABLE: str(folder or STOCK), "PYTHONPATH": str(Path(dg_lsp.__file__).parents[1])}
    environment.pop("LLAMA_CPP_LIB_PATH", None)
    command = [sys.executable, "-P", "-m", "dg_lsp.backends.llamacpp.runtime_check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in (0, 10):
        said = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
        raise ModelRuntimeError(f"the {'changed' if folder else 'installed'} llama.cpp does not run: {said}")
    return done.returncode == 0


@contextlib.contextmanager
def _progress() -> "Iterator[Look]":
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("looking", total=None)

        def look(what: str, share: float | None) -> None:
            progress.update(task, description=what, completed=share or 0, total=None if share is None else 1)

        yield look
