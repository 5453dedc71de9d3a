"""`dg-lsp bench replay`: what the options select, the measurement, and its page."""

import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from dg_lsp.bench import metrics, runner
from dg_lsp.bench import replay as typing
from dg_lsp.bench.typing_model import Selection, TypingTask, function_bodies, typing_task
from dg_lsp.cli import loading
from dg_lsp.cli.measurements import finish, header_of, open_model, progress_bar, remote_notes
from dg_lsp.cli.options import check_decoder
from dg_lsp.cli.source import SourceFile
from dg_lsp.errors import InputFileError, UsageError
from dg_lsp.settings import Settings


def measure_replay(
    played: typing.Replay,
    selection: Selection,
    settings: Settings,
    *,
    as_json: bool,
    output: Path | None,
    others: Sequence[Path] = (),
) -> int:
    """Runs `bench replay`; returns the exit code. `others` are run files of the same typing, to compare with."""
    check_decoder(played.decoder, settings)
    lines = [task.lines for task in played.tasks]
    editor = {"editor": asdict(played.editor), "typing": asdict(played.typing)}
    listed = {"selection": selection.value, "lines": lines, **editor, "seed": played.seed, "decoder": played.decoder}
    opened = open_model(settings)
    with closing(opened.engine):
        header = header_of("replay", opened, settings, {task.path: Path(task.path) for task in played.tasks}, listed)
        rivals = [rival for path in others for rival in _rivals(path, header)]
        with runner.RunFile(output, header) as file:
            completer = typing.EngineCompleter(opened.engine, file.attempts.values())
            events, is_complete = _play(played, completer, file)
    attempts = tuple(event.attempt for event in events if isinstance(event, typing.RequestEvent))
    how = (completer.contender, "is the time until its answers")
    notes = remote_notes(settings.remote, *how) if settings.is_remote else ()
    limit = f"Limits: every answer has a deadline of {settings.completion.deadline_ms:g} ms, as in an editor."
    if stop_ms := settings.completion.early_stop_ms:
        limit += f" It stops early after {stop_ms:g} ms of an idle machine, counted in passes."
    notes = (
        *typing.assumptions(played, selection),
        limit,
        *notes,
        *(() if is_complete else (runner.INTERRUPTED_NOTE,)),
    )
    run, summary = runner.Run(header, attempts, is_complete, notes), typing.summarize_replay(events)
    tree, tables = typing.replay_json(run, summary) if as_json else None, typing.replay_tables(run, summary)
    if rivals:
        run = replace(run, attempts=(*run.attempts, *rivals))
        tables.insert(1, metrics.summary_table("All contenders", metrics.by_contender(run.attempts)))
    return finish(run, tables, tree)


def _rivals(path: Path, header: runner.RunHeader) -> list[metrics.Attempt]:
    """The attempts of another run of the same typing, named after its file where the model is the same.

    Raises:
        InputFileError: the file holds no run, or one of another typing.
    """
    run = runner.Run.read(path)
    names = run.header.differences(replace(run.header, data=header.data, options=header.options))
    if different := [name for name in names if not name.startswith("options.decoder")]:
        raise InputFileError(f"{path} holds a replay of other files or typing ({', '.join(different)} differ)")
    is_same = run.header.model == header.model
    return [replace(attempt, contender=path.stem) if is_same else attempt for attempt in run.attempts]


def typing_tasks(
    files: Iterable[Path], region: str | None, start: int | None, settings: Settings, *, bodies: bool
) -> tuple[Selection, list[TypingTask]]:
    """What the options of `bench replay` select, and the tasks of all files, of which the settings exclude none."""
    if (region is not None) + bodies + (start is not None) > 1:
        raise UsageError("--region, --bodies and --start exclude each other: give one of them")
    lines = re.fullmatch(r"(\d{1,9})-(\d{1,9})", region or "1-1")
    if lines is None:
        raise UsageError(f"--region takes FIRST-LAST, two line numbers, not {region}")
    selection = Selection.BODIES if bodies else Selection.ONWARDS if region is None else Selection.REGION
    tasks: list[TypingTask] = []
    for path in dict.fromkeys(files):
        file = SourceFile.read(path)
        loading.check_allowed(file, settings)
        source = (str(path), file.language, file.text)
        if bodies:
            tasks += function_bodies(*source)
        else:
            span = (start or 1,) if region is None else (int(lines[1]), int(lines[2]))
            tasks.append(typing_task(*source, *span))
    return selection, tasks


def _play(
    played: typing.Replay, completer: typing.EngineCompleter, file: runner.RunFile
) -> tuple[list[typing.Event], bool]:
    """All events, and False after Ctrl-C."""
    events: list[typing.Event] = []
    num_files = len({task.path for task in played.tasks})
    total = played.num_keys if played.limit is None else played.limit * num_files
    try:
        with progress_bar("keys" if played.limit is None else "requests", total) as advance:
            for event in played.run(completer):
                events.append(event)
                if isinstance(event, typing.RequestEvent):
                    if (event.attempt.case, completer.contender) not in file.attempts:
                        file.add(event.attempt)
                    advance(int(played.limit is not None))
                elif played.limit is None and not isinstance(event, typing.TaskEvent):
                    advance(event.num_keys if isinstance(event, typing.AcceptEvent) else 1)
    except KeyboardInterrupt:
        return events, False
    return events, True
