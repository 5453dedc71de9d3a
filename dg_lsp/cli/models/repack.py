"""`dg-lsp models repack`: a DiffusionGemma as llama.cpp runs it, made of a GGUF or of a checkpoint."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dg_lsp.backends.llamacpp.quantize import FileType
    from dg_lsp.gguf import ProgressCallback
    from dg_lsp.models.repack.parts import Parts

_SHARD_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")


def repack_model(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A GGUF of architecture diffusion-gemma, or the folder of a Hugging Face checkpoint."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT.gguf", help="Where to write it.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="How to hold weights: BF16, Q8_0, Q4_K_M...; else as they are."),
    ] = None,
) -> int:
    """Make of a DiffusionGemma a GGUF that llama.cpp runs, and a small one beside it for its self-conditioning."""
    from dg_lsp.backends.llamacpp.quantize import file_type, quantize
    from dg_lsp.models.repack.pair import check_target, side_path, write_pair

    wanted = file_type(kind) if kind else None
    parts, quantized = _take(source, wanted)
    target = output or _default_target(source, parts, wanted)
    size = parts.size + (quantized.size(parts.body_size, parts.bits) if quantized else 0)
    check_target(target, size)
    with _progress(target.name, parts.size + (parts.body_size if quantized else 0)) as look:
        press = (lambda written, smaller: quantize(written, smaller, quantized, look)) if quantized else None
        write_pair(parts, target, look, press)
    typer.echo(f"{side_path(target).name} belongs to it and has to stay beside it", err=True)
    typer.echo(target)
    return 0


def _take(source: Path, wanted: "FileType | None") -> "tuple[Parts, FileType | None]":
    """The model's parts, and what llama.cpp has to make of them once they are written.

    Raises:
        UsageError: the weights are quantized already, and another type is wanted.
        DgLspError: it is no DiffusionGemma, or cannot be read.
    """
    from dg_lsp.errors import UsageError
    from dg_lsp.gguf import read_header
    from dg_lsp.models.repack.from_checkpoint import FILE_TYPES, take_checkpoint
    from dg_lsp.models.repack.from_gguf import is_repacked, take_gguf, take_repacked

    if source.is_dir():
        direct = next((number for number in FILE_TYPES if wanted and number.name == wanted.name), None)
        return take_checkpoint(source, direct), None if direct else wanted
    header = read_header(source)
    parts = take_repacked(header) if wanted and is_repacked(header) else take_gguf(source)
    if wanted and parts.is_quantized:
        raise UsageError(
            f"{source} is quantized already, and another type would make it worse: leave out --type, "
            "or name a file in BF16 or F16"
        )
    return parts, wanted


def _default_target(source: Path, parts: "Parts", wanted: "FileType | None") -> Path:
    """Beside a GGUF; for a checkpoint in the folder where one is."""
    if source.is_dir():
        return Path(f"{source.resolve().name}-{wanted.name if wanted else parts.embedding_kind}.gguf")
    stem = _SHARD_NUMBER.sub("", source.name.removesuffix(".gguf"))
    return source.with_name(f"{stem}-{wanted.name if wanted else 'dg'}.gguf")


@contextlib.contextmanager
def _progress(name: str, size: int) -> "Iterator[ProgressCallback]":
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=size)
        yield lambda done: progress.advance(task, done)
