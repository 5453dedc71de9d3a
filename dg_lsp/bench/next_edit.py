"""`dg-lsp bench next-edit`: next edits are cut out of the history of a repository, and proposals compared with them.

The edits that a commit makes in one file are taken from top to bottom: the first ones are the history, any of the
remaining ones is right. The proposal is that of the first place after the last edit, as an editor shows it. The method
is that of `docs/benchmarks.md`.
"""

import random
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from operator import attrgetter
from pathlib import Path

from dg_lsp.bench.metrics import Table, grouped, milliseconds, number, percent
from dg_lsp.context.document import LineIndex, Snapshot
from dg_lsp.context.edit_history import LINES_AROUND, Edit
from dg_lsp.context.languages import grammar_of, language_id_of, language_of
from dg_lsp.context.syntax_tree import LimitedParser
from dg_lsp.engine.edit_source import NextEditRequest
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.next_edit import Proposal, TokenChange, changes_of, from_last_edit, next_edits
from dg_lsp.engine.ttfue import quantile, share
from dg_lsp.errors import InputFileError, RequestError

MAX_EDITS = 12
"""Edits of one commit in a file; a file with more was moved or reformatted."""
MAX_EDIT_LINES = 30
MAX_FILES = 12
"""Files of one commit."""
MAX_LINES = 3000
"""Lines of a file."""
MIN_LINE_SIMILARITY = 0.5
"""Lines that are changed one by one, and are as similar, are edits of their own."""


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Lines `[start, end)` of the text before the commit become `text`."""

    start: int
    end: int
    text: str

    @property
    def growth(self) -> int:
        """Lines that the file has more afterwards."""
        return self.text.count("\n") - (self.end - self.start)


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file of a commit: its text before, and the edits in the order in which they are made."""

    path: str
    language: str
    text: str
    edits: tuple[LineEdit, ...]


@dataclass(frozen=True, slots=True)
class NextEditCase:
    """A file after the first edits of a commit; the remaining edits are in lines of this text."""

    lines: tuple[str, ...]
    history: tuple[Edit, ...]  # newest first
    remaining: tuple[LineEdit, ...]

    def is_right(self, proposal: Proposal) -> bool:
        """Whether a proposal makes one of the remaining edits; blanks inside a line do not count."""
        text = "".join(self.lines)
        lines = LineIndex.of(text)
        if "\n" in proposal.text + text[proposal.start : proposal.end]:
            words = proposal.applied(text).split()
            changed = ([*self.lines[: edit.start], edit.text, *self.lines[edit.end :]] for edit in self.remaining)
            return any("".join(pieces).split() == words for pieces in changed)
        line = lines.line_at(proposal.start)
        _, proposed = proposal.changed_line(lines)
        return any(
            edit.start == line and edit.end == line + 1 and proposed.split() == edit.text.split()
            for edit in self.remaining
        )

    def changes(self, line: int, change: TokenChange) -> bool:
        """Whether a remaining edit replaces the same tokens in a line."""
        return any(
            (same.old, same.new) == (change.old, change.new)
            for edit in self.remaining
            if edit.start <= line < edit.end
            for same in changes_of(Edit(edit.start, "", "".join(self.lines[edit.start : edit.end]), edit.text, ""))
        )

    def is_in_place(self, proposal: Proposal) -> bool:
        """Whether a remaining edit changes the line of a proposal."""
        line = LineIndex.of("".join(self.lines)).line_at(proposal.start)
        return any(edit.start <= line < edit.end for edit in self.remaining)


def cut_history(repository: Path, num: int, seed: int = 0) -> Iterator[FileChange]:
    """At most `num` changes of files in languages with a grammar, of commits drawn at random.

    Raises:
        InputFileError: the folder is no git repository, or git is not installed.
    """
    commits = list(_commits(repository))
    random.Random(seed).shuffle(commits)
    for commit, paths in commits:
        for path in paths if len(paths) <= MAX_FILES else ():
            language = language_id_of(path)
            if not language_of(language).grammar:
                continue
            change = _file_change(repository, commit, path, language)
            if change is not None:
                yield change
                num -= 1
            if not num:
                return


def cases_of(change: FileChange) -> Iterator[NextEditCase]:
    """The states of a file after its first edit, its first two edits, and so on."""
    lines = change.text.splitlines(keepends=True)
    for num in range(1, len(change.edits)):
        current = list[str]()
        firsts = dict[LineEdit, int]()
        position = 0
        made = sorted(change.edits[:num], key=attrgetter("start"))
        for edit in made:
            current += lines[position : edit.start]
            firsts[edit] = len(current)
            current += edit.text.splitlines(keepends=True)
            position = edit.end
        current += lines[position:]
        history = [
            _history_edit(current, firsts[edit], "".join(lines[edit.start : edit.end]), edit.text)
            for edit in reversed(change.edits[:num])
        ]
        remaining = list[LineEdit]()
        for edit in sorted(change.edits[num:], key=attrgetter("start")):
            growth = sum(earlier.growth for earlier in made if earlier.start < edit.start)
            remaining.append(LineEdit(edit.start + growth, edit.end + growth, edit.text))
        yield NextEditCase(tuple(current), tuple(history), tuple(remaining))


def _history_edit(current: Sequence[str], first: int, old: str, new: str) -> Edit:
    last = first + new.count("\n")
    return Edit(
        line=first,
        before="".join(current[max(0, first - LINES_AROUND) : first]),
        old=old,
        new=new,
        after="".join(current[last : last + LINES_AROUND]),
    )


def _git(repository: Path, *arguments: str) -> str | None:
    """What git prints; None for text that is not UTF-8."""
    command = ["git", "-C", str(repository), *arguments]
    try:
        output = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise InputFileError("git is not installed: histories are read with it") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise InputFileError(f"git cannot read {repository}: {reason}") from error
    try:
        return output.decode()
    except UnicodeDecodeError:
        return None


def _commits(repository: Path) -> Iterator[tuple[str, list[str]]]:
    """Every commit that is no merge, and the files that it modifies."""
    log = _git(repository, "log", "--no-merges", "--format=%x00%H", "--diff-filter=M", "--name-only") or ""
    for entry in log.split("\0")[1:]:
        commit, *paths = entry.split("\n")
        yield commit, [path for path in paths if path]


def _file_change(repository: Path, commit: str, path: str, language: str) -> FileChange | None:
    """The change of a file, unless it has one edit, too many, or too large ones."""
    old, new = (_git(repository, "show", f"{revision}:{path}") for revision in (f"{commit}^", commit))
    if not old or not new or "\r" in old or "\r" in new:
        return None
    old_lines, new_lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if len(old_lines) > MAX_LINES:
        return None
    edits = tuple(_line_edits(old_lines, new_lines))
    is_large = any(max(edit.end - edit.start, edit.text.count("\n")) > MAX_EDIT_LINES for edit in edits)
    if not 2 <= len(edits) <= MAX_EDITS or is_large:
        return None
    return FileChange(path, language, old, edits)


def _line_edits(old: Sequence[str], new: Sequence[str]) -> Iterator[LineEdit]:
    for kind, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        pairs = list(zip(old[start:end], new[new_start:new_end], strict=False))
        is_by_line = end - start == new_end - new_start and all(
            SequenceMatcher(None, before, after).ratio() > MIN_LINE_SIMILARITY for before, after in pairs
        )
        if is_by_line:
            yield from (LineEdit(start + n, start + n + 1, after) for n, (_, after) in enumerate(pairs))
        else:
            yield LineEdit(start, end, "".join(new[new_start:new_end]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The first proposal for one case."""

    language: str
    milliseconds: float
    is_shown: bool = False
    is_in_place: bool = False
    is_right: bool = False
    is_reversal: bool = False  # it takes an edit of the history back
    breaks_syntax: bool = False  # the file has a syntax error only with it


def measure(case: NextEditCase, language: str, engine: Engine | None = None) -> Outcome:
    """Proposes the next edit of a case, by repetition or by a model, and compares it with the remaining edits.

    Raises:
        ModelUnsupportedError: the model proposes no edits.
    """
    text = "".join(case.lines)
    began = time.perf_counter()
    lines = LineIndex.of(text)
    if engine is None:
        proposals: Sequence[Proposal] = next_edits(lines, case.history, language)
    else:
        newest = case.history[0]
        last = min(lines.num_lines - 1, newest.line + max(0, newest.new.count("\n") - 1))
        request = NextEditRequest(Snapshot("file:///code", 1, text, language), lines.span(last)[1], case.history)
        proposals = _proposals(request, engine)
    proposal = next(iter(from_last_edit(proposals, lines, case.history[0])), None)
    spent = 1e3 * (time.perf_counter() - began)
    if proposal is None:
        return Outcome(language, spent)
    _, proposed = proposal.changed_line(lines)
    return Outcome(
        language,
        spent,
        is_shown=True,
        is_in_place=case.is_in_place(proposal),
        is_right=case.is_right(proposal),
        is_reversal=any(proposed == edit.old.rstrip("\n") for edit in case.history),
        breaks_syntax=_breaks_syntax(text, proposal.applied(text), language),
    )


def _proposals(request: NextEditRequest, engine: Engine) -> Sequence[Proposal]:
    """What a model proposes; none where the code contains a mark of its prompt."""
    try:
        return drain(request.run(engine, time.monotonic() + request.deadline_ms / 1e3)).proposals
    except RequestError:
        return ()


def _breaks_syntax(before: str, after: str, language: str) -> bool:
    grammar = grammar_of(language_of(language).grammar)
    if grammar is None:
        return False
    parser = LimitedParser(grammar)
    return not parser.has_error(before) and parser.has_error(after)


def summary(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Shares of all cases, or of the shown proposals, from 0 to 1, and milliseconds."""
    shown = [outcome for outcome in outcomes if outcome.is_shown]
    times = sorted(outcome.milliseconds for outcome in outcomes)
    return {
        "num": len(outcomes),
        "shown": share(len(shown), len(outcomes)),
        "right": share(sum(outcome.is_right for outcome in shown), len(outcomes)),
        "right_of_shown": share(sum(outcome.is_right for outcome in shown), len(shown)),
        "in_place_of_shown": share(sum(outcome.is_in_place for outcome in shown), len(shown)),
        "reversals_of_shown": share(sum(outcome.is_reversal for outcome in shown), len(shown)),
        "syntax_errors_of_shown": share(sum(outcome.breaks_syntax for outcome in shown), len(shown)),
        "ms_p50": quantile(times, 0.5),
        "ms_p90": quantile(times, 0.9),
    }


_COLUMNS = {
    "right": "right",
    "shown": "shown",
    "right_of_shown": "right of shown",
    "in_place_of_shown": "place right",
    "reversals_of_shown": "reversals",
    "syntax_errors_of_shown": "new syntax errors",
}


def table(outcomes: Iterable[Outcome]) -> Table:
    """One row for each language and one for all."""
    listed = list(outcomes)
    groups: Mapping[str, list[Outcome]] = {"all": listed, **grouped(listed, lambda outcome: outcome.language)}
    rows = []
    for language, members in groups.items():
        numbers = summary(members)
        shares = [percent(numbers[name]) for name in _COLUMNS]
        times = [milliseconds(numbers[name]) for name in ("ms_p50", "ms_p90")]
        rows.append((language, number(len(members)), *shares, *times))
    columns = ("language", "cases", *_COLUMNS.values(), "median", "90th percentile")
    note = "Right: the proposal is one of the remaining edits. The last four shares are of what is shown."
    return Table("Next edits", columns, {"": rows}, note)
