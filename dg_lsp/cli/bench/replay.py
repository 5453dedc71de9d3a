"""`dg-lsp bench replay`: files typed again beside the model, in virtual time."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.bench.replay.editor import Editor, TypeThrough
from dg_lsp.bench.replay.keys import Typist
from dg_lsp.cli.options import Decoder, GpuLayers, Json, Model, Remote, Threads

if TYPE_CHECKING:
    from dg_lsp.bench.replay.passage import Passage
    from dg_lsp.bench.replay.run import Buffer

_TYPIST, _EDITOR = Typist(), Editor()


def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to type again.")],
    region: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="Type only these lines, the rest of the file around them."),
    ] = None,
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Type each function's body, the rest of the file around it (Python).")
    ] = False,
    start: Annotated[
        int | None, typer.Option(min=1, metavar="LINE", help="Type from this line on, with nothing after the cursor.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N requests of each file.")] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Same seed, same typist.")] = 0,
    speed: Annotated[
        float, typer.Option(min=0.1, max=100, metavar="X", help="So many times the speed of an average typist.")
    ] = _TYPIST.speed,
    reaction: Annotated[
        float, typer.Option(min=0, metavar="MS", help="From an item's appearance to the key that accepts it.")
    ] = _TYPIST.reaction_ms,
    debounce: Annotated[
        float, typer.Option(min=0, metavar="MS", help="From a key to the editor's request.")
    ] = _EDITOR.debounce_ms,
    type_through: Annotated[
        TypeThrough, typer.Option(help="A key that goes on with an item: ask again, keep it unasked, or dismiss it.")
    ] = _EDITOR.type_through,
    model: Model = None,
    remote: Remote = None,
    decoder: Decoder = None,
    as_json: Json = False,
    output: Annotated[
        Path | None, typer.Option(metavar="RUN.jsonl", help="Keep every request here, and go on with an earlier run.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT.html", help="Write a page, too.")] = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Type files again in virtual time: what would have been shown, accepted and spared, and what it cost."""
    from dg_lsp.bench.replay.run import Replay
    from dg_lsp.bench.report.page import check_report_path
    from dg_lsp.cli.bench.replaying import Playback
    from dg_lsp.cli.loading import configure, overrides

    if html is not None:
        check_report_path(html)
    buffer = _buffer(region, start, bodies=bodies)
    typed = Replay(
        passages=[passage for path in dict.fromkeys(files) for passage in _passages(path, buffer, region, start)],
        typist=Typist(speed=speed, reaction_ms=reaction),
        editor=Editor(debounce, type_through),
        seed=seed,
        limit=limit,
        decoder=decoder,
    )
    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    playback = Playback.play(typed, buffer, settings, output)
    playback.print(as_json=as_json)
    if html is not None:
        playback.write_page(html)
    return playback.exit_code


def _buffer(region: str | None, start: int | None, *, bodies: bool) -> "Buffer":
    from dg_lsp.bench.replay.run import Buffer
    from dg_lsp.errors import UsageError

    if (region is not None) + bodies + (start is not None) > 1:
        raise UsageError("--region, --bodies and --start exclude each other: give one of them")
    if bodies:
        return Buffer.BODIES
    return Buffer.ONWARDS if region is None else Buffer.REGION


def _passages(path: Path, buffer: "Buffer", region: str | None, start: int | None) -> Iterator["Passage"]:
    from dg_lsp.bench.replay.passage import Source
    from dg_lsp.bench.replay.run import Buffer
    from dg_lsp.cli.source import SourceFile

    file = SourceFile.read(path)
    source = Source(str(path), file.language, file.text)
    if buffer is Buffer.BODIES:
        yield from source.bodies()
    elif buffer is Buffer.REGION:
        yield source.region(*_lines(region or ""))
    else:
        yield source.onwards(start or 1)


def _lines(region: str) -> Sequence[int]:
    """Two 1-based line numbers.

    Raises:
        UsageError: no such pair.
    """
    from dg_lsp.errors import UsageError

    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", region)
    if match is None:
        raise UsageError(f"--region takes FIRST-LAST, two line numbers, not {region}")
    return [int(number) for number in match.groups()]
