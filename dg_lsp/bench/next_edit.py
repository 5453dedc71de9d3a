"""`dg-lsp bench next-edit`: next edits are cut out of the history of a repository, and proposals compared with them.

The edits that a commit makes in one file are taken from top to bottom: the first ones are typed key by key, as a user
types them, and any of the remaining ones is right. The proposal is that of the first place after the last edit, as an
editor shows it. The method is that of `docs/benchmarks.md`.
"""

import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from pathlib import Path
from typing import Any

from dg_lsp.bench.metrics import ALL, Table, grouped, measure_table
from dg_lsp.context.document import LineIndex, Snapshot
from dg_lsp.context.edit_history import Edit, EditHistory
from dg_lsp.context.languages import language_id_of, language_of
from dg_lsp.context.syntax_tree import SyntaxCheck
from dg_lsp.engine.edit_source import NextEditRequest
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.next_edit import PAUSE_SECONDS, Proposal, from_newest_edit, next_edits, takes_back
from dg_lsp.engine.ttfue import quantile, rounded, share, summarize_times
from dg_lsp.errors import InputFileError, RequestError
from dg_lsp.postprocess.text_edits import Change, shared_ends

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
class FileChange:
    """One file of a commit: its text before, and the edits in the order in which they are made."""

    path: str
    language: str
    text: str
    edits: tuple[Change, ...]  # of whole lines of this text


@dataclass(frozen=True, slots=True)
class NextEditCase:
    """A file after the first edits of a commit; the remaining edits are in lines of this text."""

    lines: LineIndex
    history: tuple[Edit, ...]  # newest first; empty after an edit that is too large
    remaining: tuple[Change, ...]

    def is_right(self, proposal: Proposal) -> bool:
        """Whether a proposal makes one of the remaining edits; blanks and line ends do not count."""
        words = proposal.applied(self.lines.text).split()
        return any(edit.applied(self.lines.text).split() == words for edit in self.remaining)

    def edits_at(self, line: int) -> list[Change]:
        """The remaining edits that change a line."""
        return [edit for edit in self.remaining if edit.start <= self.lines.starts[line] < edit.end]

    def edits_in_place(self, proposal: Proposal) -> list[Change]:
        """The remaining edits that change the line of a proposal."""
        return self.edits_at(self.lines.line_at(proposal.start))

    def kept_text(self, proposal: Proposal) -> float:
        """Similarity of the changed line, from 0 to 1, with a remaining edit in its place; 1 for a right insertion."""
        _, line = proposal.changed_line(self.lines)
        texts = [edit.text.removesuffix("\n") for edit in self.edits_in_place(proposal)]
        ratios = (SequenceMatcher(None, line, text, autojunk=False).ratio() for text in texts)
        return max(ratios, default=float(self.is_right(proposal)))


def cut_history(
    repository: Path, num: int, seed: int = 0, is_excluded: Callable[[Snapshot], bool] = lambda _: False
) -> Iterator[FileChange]:
    """At most `num` changes of files of a folder in languages with a grammar, of commits drawn at random.

    Raises InputFileError: the folder is no git repository, or git is not installed.
    """
    folder = _git(repository, "rev-parse", "--show-prefix").removesuffix("\n")
    commits = list(_commits(repository))
    random.Random(seed).shuffle(commits)
    for commit, paths in commits:
        for path in paths if len(paths) <= MAX_FILES else ():
            language = language_id_of(path)
            if not language_of(language).grammar:
                continue
            change = _file_change(repository, commit, folder + path, language)
            if change is None or is_excluded(Snapshot((repository.resolve() / path).as_uri(), change.text, language)):
                continue
            yield change
            num -= 1
            if not num:
                return


def cases_of(change: FileChange) -> Iterator[NextEditCase]:
    """The states of a file after its first edit, its first two edits, and so on."""
    lines = LineIndex.of(change.text)
    history = EditHistory()
    for num in range(1, len(change.edits)):
        made = change.edits[:num]
        lines = typed(history, lines, moved(made[-1], made[:-1]))
        edits = tuple(history.edits(lines, 0.0))
        yield NextEditCase(lines, edits, tuple(moved(edit, made) for edit in change.edits[num:]))


def moved(edit: Change, made: Iterable[Change]) -> Change:
    """The edit in the text after other edits of the same text."""
    growth = sum(len(change.text) - (change.end - change.start) for change in made if change.start < edit.start)
    return Change(edit.start + growth, edit.end + growth, edit.text)


def typed(history: EditHistory, lines: LineIndex, edit: Change) -> LineIndex:
    """The lines after an edit: what it replaces is selected, and its text is typed key by key."""
    head, tail = shared_ends(lines.text[edit.start : edit.end], edit.text)
    start, end = edit.start + head, edit.end - tail
    for key in edit.text[head : len(edit.text) - tail] or [""]:
        history.change(lines, start, end, key, 0.0)
        lines = lines.replaced(start, end, key)
        start += len(key)
        end = start
    return lines


def _git(repository: Path, *arguments: str) -> str:
    """What git prints, with surrogates where it is no UTF-8. The repository's settings name no program that is run."""
    command = ["git", "-C", str(repository), "-c", "log.showSignature=false", "-c", "core.quotePath=false", *arguments]
    try:
        environment = {**os.environ, "GIT_ALLOW_PROTOCOL": "none"}  # what a partial clone lacks is not fetched
        output = subprocess.run(command, capture_output=True, check=True, env=environment).stdout
    except FileNotFoundError as error:
        raise InputFileError("git is not installed: histories are read with it") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise InputFileError(f"git cannot read {repository}: {reason}") from error
    return output.decode(errors="surrogateescape")


def _commits(repository: Path) -> Iterator[tuple[str, list[str]]]:
    """Every commit that is no merge, and the files of the folder that it modifies."""
    log = _git(repository, "log", "--no-merges", "--format=%x00%H", "--diff-filter=M", "--name-only", "--relative")
    for entry in log.split("\0")[1:]:
        commit, *paths = entry.split("\n")
        yield commit, [path for path in paths if path]


def _file_change(repository: Path, commit: str, path: str, language: str) -> FileChange | None:
    """The change of a file in UTF-8 with LF line ends, unless it has one edit, too many, or too large ones."""
    old, new = (_git(repository, "show", f"{revision}:{path}") for revision in (f"{commit}^", commit))
    if not old or not new or re.search("[\r\udc80-\udcff]", old + new):
        return None
    old_lines, new_lines = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (old, new))
    if len(old_lines) > MAX_LINES:
        return None
    edits = tuple(_line_edits(old_lines, new_lines))
    sizes = [part.count("\n") for edit in edits for part in (old[edit.start : edit.end], edit.text)]
    if not 2 <= len(edits) <= MAX_EDITS or max(sizes) > MAX_EDIT_LINES:
        return None
    return FileChange(path, language, old, edits)


def _line_edits(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    starts = [0, *accumulate(map(len, old))]
    for kind, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        pairs = list(zip(old[start:end], new[new_start:new_end], strict=False))
        is_by_line = end - start == new_end - new_start and all(
            SequenceMatcher(None, before, after).ratio() > MIN_LINE_SIMILARITY for before, after in pairs
        )
        if is_by_line:
            yield from (Change(starts[n], starts[n + 1], after) for n, (_, after) in enumerate(pairs, start))
        else:
            yield Change(starts[start], starts[end], "".join(new[new_start:new_end]))


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The first proposal for one case."""

    language: str
    milliseconds: float
    is_shown: bool = False
    is_in_place: bool = False
    is_right: bool = False
    kept_text: float = 0.0  # from 0 to 1
    is_reversal: bool = False  # it takes an edit of the history back
    breaks_syntax: bool = False  # the file has a syntax error only with it

    @property
    def ttfue_ms(self) -> float:
        """Time to the first useful edit, from the last key on, if the proposal is right."""
        return 1e3 * PAUSE_SECONDS + self.milliseconds


def measure(case: NextEditCase, language: str, engine: Engine | None = None) -> CaseOutcome:
    """Proposes the next edit of a case, by repetition or by a model, and compares it with the remaining edits.

    Raises ModelUnsupportedError: the model proposes no edits.
    """
    lines = case.lines
    began = time.perf_counter()
    proposals: Sequence[Proposal] = ()
    if engine is None:
        proposals = next_edits(lines, case.history, language)
    elif case.history:
        request = NextEditRequest(Snapshot("file:///code", lines.text, language), lines, case.history)
        proposals = from_newest_edit(_proposals(request, engine), lines, case.history)
    spent = 1e3 * (time.perf_counter() - began)
    if not proposals:
        return CaseOutcome(language, spent)
    proposal = proposals[0]
    syntax = SyntaxCheck(lines.text, language)
    return CaseOutcome(
        language,
        spent,
        is_shown=True,
        is_in_place=case.is_right(proposal) or bool(case.edits_in_place(proposal)),
        is_right=case.is_right(proposal),
        kept_text=case.kept_text(proposal),
        is_reversal=takes_back(proposal, lines, case.history, syntax),
        breaks_syntax=not syntax.has_error and syntax.has_error_in(proposal.applied(lines.text)),
    )


def _proposals(request: NextEditRequest, engine: Engine) -> Sequence[Proposal]:
    """What a model proposes; none where the code contains a mark of its prompt."""
    try:
        return drain(request.run(engine, time.monotonic() + request.deadline_ms / 1e3)).proposals
    except RequestError:
        return ()


def summary(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    """Shares of all cases, or of the shown proposals, from 0 to 1, milliseconds, and the numbers of `docs/ttfue.md`."""
    num = len(outcomes)
    shown = [outcome for outcome in outcomes if outcome.is_shown]
    right = [outcome for outcome in shown if outcome.is_right]
    times = [outcome.milliseconds for outcome in outcomes]
    numbers: dict[str, Any] = rounded(
        {
            "num": num,
            "right": share(len(right), num),
            "shown": share(len(shown), num),
            "wrong_shown": share(len(shown) - len(right), num),
            "right_of_shown": share(len(right), len(shown)),
            "in_place_of_shown": share(sum(outcome.is_in_place for outcome in shown), len(shown)),
            "kept_text_of_shown": share(sum(outcome.kept_text for outcome in shown), len(shown)),
            "reversals_of_shown": share(sum(outcome.is_reversal for outcome in shown), len(shown)),
            "syntax_errors_of_shown": share(sum(outcome.breaks_syntax for outcome in shown), len(shown)),
            "ms_p50": quantile(times, 0.5),
            "ms_p90": quantile(times, 0.9),
            **summarize_times(num, [outcome.ttfue_ms for outcome in right]),
        }
    )
    return numbers


def table(outcomes: Sequence[CaseOutcome]) -> Table:
    """The numbers of `summary`, one column for all languages and one for each."""
    groups = {ALL: outcomes, **grouped(outcomes, lambda outcome: outcome.language)}
    pause = f"the pause of {1e3 * PAUSE_SECONDS:.0f} ms"
    note = f"Right: the proposal is one of the remaining edits. TTFUE includes {pause}."
    return measure_table("Next edits", {language: summary(members) for language, members in groups.items()}, note)
