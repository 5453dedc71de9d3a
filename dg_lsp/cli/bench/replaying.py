"""One run of `dg-lsp bench replay`: the model opened, everything typed, and what is said of it."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import attrs
import typer

from dg_lsp.bench.machine import Machine
from dg_lsp.bench.replay.account import Account
from dg_lsp.bench.replay.asking import WAY, LiveAsker, RecordedAsker
from dg_lsp.bench.replay.events import Asked, Event, Typed
from dg_lsp.bench.replay.run import Buffer, Replay
from dg_lsp.bench.replay.table import account_rows, account_table, setting_lines
from dg_lsp.bench.report.page import write_report
from dg_lsp.bench.report.record import Report, Table
from dg_lsp.bench.runs import Header, RunFile, file_sha256
from dg_lsp.cli import INTERRUPTED
from dg_lsp.cli.bench import opening
from dg_lsp.cli.bench.progress import progress_bar
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.settings import Settings


@dataclass(frozen=True, slots=True)
class Playback:
    """What was typed, and what came of it."""

    replay: Replay
    buffer: Buffer
    header: Header
    account: Account
    attempts: tuple[Attempt, ...]
    is_complete: bool
    """False when somebody pressed Ctrl-C."""
    notes: tuple[str, ...] = ()
    """What a reader of a server's numbers must know."""

    @classmethod
    def play(cls, replay: Replay, buffer: Buffer, settings: Settings, output: Path | None) -> Self:
        """Types everything, or as much as there is before Ctrl-C.

        Raises:
            ModelError, BackendError, RequestError: as the model does.
            InputFileError: `output` cannot be written, or holds another run.
        """
        opening.check_decoder(replay.decoder, settings)
        model = opening.open_model(settings)
        try:
            header = _header(replay, buffer, settings, model)
            with RunFile(output, header) as run:
                events, is_complete = _typed(replay, RecordedAsker(run.attempts, LiveAsker(model.engine)), run)
        finally:
            model.engine.close()
        attempts = tuple(event.attempt for event in events if isinstance(event, Asked))
        is_remote = settings.backend == opening.REMOTE
        notes = opening.remote_notes(settings.remote, "is what it was waited for") if is_remote else ()
        return cls(replay, buffer, header, Account.of(events), attempts, is_complete, notes)

    @property
    def exit_code(self) -> int:
        """0, or as a shell reports an interrupted program."""
        return 0 if self.is_complete else INTERRUPTED

    def print(self, *, as_json: bool) -> None:
        """To standard output: one JSON object, or a table and what it assumes."""
        for line in [json.dumps(self.json())] if as_json else self.lines():
            typer.echo(line)

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "model": self.header.model,
            "model_sha256": self.header.model_sha256,
            "files": list(self.header.data),
            "is_complete": self.is_complete,
            "length_knowledge": "none",
            **self.header.options,
            **self.account.json(),
            "machine": dataclasses.asdict(self.header.machine),
        }

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        yield f"{self.header.model}; {self.header.machine.line()}"
        yield from setting_lines(self.replay, self.buffer)
        yield from self.notes
        if not self.is_complete:
            yield "stopped before everything was typed"
        yield ""
        yield from account_table(self.account)

    def write_page(self, path: Path) -> None:
        """A self-contained page of the same.

        Raises:
            InputFileError: it cannot be written there.
        """
        notes = [f"{line[0].upper()}{line[1:]}." for line in setting_lines(self.replay, self.buffer)]
        notes += ["A request that the next key cancelled is a miss.", *self.notes]
        if not self.is_complete:
            notes.append("Interrupted: only what was typed up to then is counted.")
        report = Report.of_run(
            f"dg-lsp bench replay: {', '.join(self.header.data)}",
            self.header,
            self.attempts,
            notes=notes,
            tables=[Table("Typing beside the model", ("what", "value"), account_rows(self.account))],
        )
        write_report(path, report)


def _typed(replay: Replay, asker: RecordedAsker, run: RunFile) -> tuple[list[Event], bool]:
    """Everything that happened, and whether that is all."""
    paths = {passage.path for passage in replay.passages}
    total = replay.num_keys if replay.limit is None else replay.limit * len(paths)
    events: list[Event] = []
    with progress_bar("keys" if replay.limit is None else "requests", total) as advance:
        try:
            for event in replay.run(asker):
                events.append(event)
                if isinstance(event, Asked) and not run.has(event.attempt.site, WAY):
                    run.add(event.attempt)
                advance(_num_done(event, replay))
        except KeyboardInterrupt:
            return events, False
    return events, True


def _num_done(event: Event, replay: Replay) -> int:
    """Of what the progress counts: requests where they are limited, else keys."""
    if replay.limit is not None:
        return int(isinstance(event, Asked))
    if isinstance(event, Asked):
        return 0
    return 1 if isinstance(event, Typed) else event.num_keys


def _header(replay: Replay, buffer: Buffer, settings: Settings, model: opening.OpenedModel) -> Header:
    return Header(
        command="replay",
        machine=Machine.here(model.threads),
        model=model.engine.spec.name,
        model_sha256=model.sha256,
        data={passage.path: file_sha256(Path(passage.path)) for passage in replay.passages},
        options={
            "buffer": buffer.value,
            "lines": [[passage.first_line, passage.last_line] for passage in replay.passages],
            "editor": dataclasses.asdict(replay.editor),
            "typist": dataclasses.asdict(replay.typist),
            "seed": replay.seed,
            "decoder": replay.decoder.value if replay.decoder else None,
            "settings": attrs.asdict(settings.fill),
            **(opening.remote_options(settings.remote) if settings.backend == opening.REMOTE else {}),
        },
    )
