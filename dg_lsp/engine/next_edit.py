"""Next edits that repeat the last ones: changed tokens, found again in their context. No model takes part.

The probability that a repetition is right is that of a logistic model over named features, whose weights in
`next_edit.toml` were fitted to the histories of public repositories (`training/dg_training/next_edits.py`).
"""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib import resources
from itertools import islice

from dg_lsp.context.document import LINE_END, LineIndex, is_word, num_shared
from dg_lsp.context.edit_history import Edit
from dg_lsp.context.syntax_tree import SyntaxCheck
from dg_lsp.postprocess.text_edits import Change

PAUSE_SECONDS = 0.3
"""Nothing is proposed while the user types: the last change must be this old, unless the user accepted or saved."""
NUM_EDITS = 4
"""The number of newest edits that are repeated."""
CONTEXT = 6
"""Tokens on each side of a change that are compared."""
MAX_CHANGES = 6
"""An edit with more changes of tokens is no pattern."""
MIN_SIMILARITY = 0.3
"""An edit that keeps a smaller share of its tokens is no pattern."""
MAX_OLD = 8
"""Tokens that a change replaces."""
MAX_NEW = 12
"""Tokens that a change inserts."""
MAX_SITES = 100
"""A change with more sites is not repeated."""
MAX_NEARBY = 80
"""Characters before a site that its context is read from."""
MAX_PROPOSALS = 20
MIN_CONFIDENCE = 0.6
"""On histories that the weights were not fitted to, 67 % of the shown proposals are right (docs/log.md)."""
_TOKEN = re.compile(
    r"""[^\W\d]\w* | \d[\w.]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | \n """
    r"""| == | != | <= | >= | => | -> | := | && | \|\| | :: | \.\.\. | \S""",
    re.VERBOSE,
)
"""The tokens of a text in any language; a line end is a token, blanks are none."""
_NAME = re.compile(r"[^\W\d]\w*")
_BLANKS = r"[ \t]*"


@dataclass(frozen=True, slots=True)
class Proposal(Change):
    """One edit, and the probability that it is right. A repetition is inside one line."""

    confidence: float
    repeated: frozenset[tuple[tuple[str, ...], tuple[str, ...]]] = frozenset()
    """Old and new tokens of the changes that it repeats; empty for the edit of a model."""

    def places(self, proposals: Iterable["Proposal"]) -> list["Proposal"]:
        """The proposals that repeat no other changes than this one does: this one at all its places."""
        return [proposal for proposal in proposals if proposal.repeated <= self.repeated]

    def changed_line(self, lines: LineIndex) -> tuple[str, str]:
        """The lines that the edit is in, and what they become, both without the last line end."""
        start, end = lines.span(lines.line_at(self.start))[0], lines.span(lines.line_at(self.end))[1]
        return lines.text[start:end], lines.text[start : self.start] + self.text + lines.text[self.end : end]


@dataclass(frozen=True, slots=True)
class TokenChange:
    """Tokens that an edit replaced, and the tokens around them in the order of the text."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    text: str
    """Of the new tokens; where no token was replaced or none is left, with the blanks up to the tokens around them."""

    @property
    def kind(self) -> str:
        """What was done: `rename`, `replace`, `insert` or `delete`."""
        if not self.old:
            return "insert"
        if not self.new:
            return "delete"
        tokens = (*self.old, *self.new)
        return "rename" if len(tokens) == 2 and all(map(_NAME.fullmatch, tokens)) else "replace"


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a change may be repeated, with all that its probability depends on."""

    start: int
    end: int
    change: TokenChange
    left: int  # tokens before the site that are those before the change
    right: int
    age: int  # edits since the newest one that made the change
    num_edits: int  # with this change
    num_sites: int
    num_new: int  # occurrences of the first new token in the text

    def features(self, distance: int) -> list[str]:
        """Names of the features that hold for the site, `distance` lines below the last edit."""
        old, new, kind = self.change.old, self.change.new, self.change.kind
        shared = {
            "edits 2": self.num_edits >= 2,
            "edits 3": self.num_edits >= 3,
            "newest": self.age == 0,
            "sites 1": self.num_sites <= 1,
            "sites 3": self.num_sites <= 3,
            "sites 10": self.num_sites <= 10,
            "sites 30": self.num_sites <= 30,
            "new 1": self.num_new >= 1,
            "new 4": self.num_new >= 4,
            "below": distance > 0,
            "lines 2": abs(distance) <= 2,
            "lines 5": abs(distance) <= 5,
            "lines 15": abs(distance) <= 15,
            "lines 50": abs(distance) <= 50,
            "old tokens 2": len(old) >= 2,
            "old tokens 4": len(old) >= 4,
            "new tokens 3": len(new) >= 3,
            "long name": bool(old) and len(old[0]) >= 4,
        }
        names = [name for name, holds in shared.items() if holds]
        if kind == "rename":
            names += [f"rename, {name}" for name in names]
        return [f"{kind} {min(self.left, 4)} {min(self.right, 4)}", *names]


def probability(features: Sequence[str]) -> float:
    """The probability that a repetition with these features is right."""
    weights = _weights()
    return 1 / (1 + math.exp(-sum(weights.get(name, 0.0) for name in ("bias", *features))))


@cache
def _weights() -> Mapping[str, float]:
    table = (resources.files(__package__) / "next_edit.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(table)["weights"])


def takes_back(proposal: Proposal, lines: LineIndex, edits: Iterable[Edit], syntax: SyntaxCheck) -> bool:
    """Whether a proposal replaces the lines of one of the edits by those that it replaced, wherever they are.

    Blanks at line ends do not count. Allowed if it mends a syntax error, which the edit has made then.
    """
    change = _changed_lines(*proposal.changed_line(lines))
    is_reversal = any(_changed_lines(edit.new, edit.old) == change for edit in edits)
    return is_reversal and not (syntax.has_error and not syntax.has_error_in(proposal.applied(lines.text)))


def _changed_lines(old: str, new: str) -> tuple[list[str], list[str]]:
    """The lines of both texts without those that they have in common at their beginnings and ends."""
    before, after = ([line.rstrip() for line in LINE_END.split(text)] for text in (old, new))
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    return before, after


def next_edits(lines: LineIndex, edits: Sequence[Edit], language_id: str) -> list[Proposal]:
    """The first repetitions of the last edits that add no syntax error and take none of them back, see `repetitions`.

    Those behind the start of the newest edit come first, then those before it, in the order of the text.
    """
    syntax = SyntaxCheck(lines.text, language_id)
    probable = repetitions(lines, edits)[:MAX_PROPOSALS]
    proposals = [
        proposal
        for proposal in probable
        if not takes_back(proposal, lines, edits, syntax)
        and not syntax.is_broken_by(proposal.start, proposal.end, proposal.text)
    ]
    return from_newest_edit(proposals, lines, edits)


def from_newest_edit(proposals: Iterable[Proposal], lines: LineIndex, edits: Sequence[Edit]) -> list[Proposal]:
    """The proposals in the order in which the user comes to them: below the start of the newest edit, then above it."""
    first = edits[0].line if edits else 0
    return sorted(proposals, key=lambda proposal: (lines.line_at(proposal.start) < first, proposal.start))


def repetitions(lines: LineIndex, edits: Sequence[Edit]) -> list[Proposal]:
    """The last edits repeated elsewhere in a text, the most probable first, at most one for each line.

    The edits come newest first and are those of this text.
    """
    by_line: dict[int, list[tuple[float, Site]]] = {}
    for line, site in sites_of(lines, edits):
        confidence = probability(site.features(line - edits[0].line))
        by_line.setdefault(line, []).append((confidence, site))
    proposals = [_proposal(lines.text, scored) for scored in by_line.values()]
    probable = [proposal for proposal in proposals if proposal.confidence >= MIN_CONFIDENCE]
    return sorted(probable, key=lambda proposal: -proposal.confidence)


def _proposal(text: str, scored: Sequence[tuple[float, Site]]) -> Proposal:
    """The most probable repetition on a line, together with those on it that are at least half as probable."""
    best = max(confidence for confidence, _ in scored)
    chosen = list[Site]()
    for confidence, site in sorted(scored, key=lambda pair: -pair[0]):
        is_free = all(site.end <= taken.start or site.start >= taken.end for taken in chosen)
        if confidence >= best / 2 and is_free:
            chosen.append(site)
    chosen.sort(key=lambda site: site.start)
    start = position = chosen[0].start
    pieces = list[str]()
    for site in chosen:
        pieces += [text[position : site.start], site.change.text]
        position = site.end
    repeated = frozenset((site.change.old, site.change.new) for site in chosen)
    return Proposal(start, position, "".join(pieces), best, repeated)


def sites_of(lines: LineIndex, edits: Sequence[Edit]) -> Iterator[tuple[int, Site]]:
    """The sites outside the edited lines where a change of the newest edits could be repeated, with their lines."""
    edited = [range(edit.line, edit.line + edit.new.count("\n")) for edit in edits]
    for changes, ages in _repeated_changes(edits):
        for site in _sites(lines.text, changes, ages):
            line = lines.line_at(site.start)
            if not any(line in edited_lines for edited_lines in edited):
                yield line, site


def _repeated_changes(edits: Sequence[Edit]) -> Iterator[tuple[list[TokenChange], list[int]]]:
    """For each pair of old and new tokens, the changes of the newest edits, and the ages of these edits."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[list[TokenChange], list[int]]] = {}
    for age, edit in enumerate(edits[:NUM_EDITS]):
        for change in changes_of(edit):
            if (change.new, change.old) in groups:  # the user took it back
                continue
            changes, ages = groups.setdefault((change.old, change.new), ([], []))
            changes.append(change)
            ages.append(age)
    yield from groups.values()


def changes_of(edit: Edit) -> list[TokenChange]:
    """The changes of tokens that an edit consists of; none if the edit is no pattern."""
    old_words = _TOKEN.findall(edit.old)
    new = list(_TOKEN.finditer(edit.new))
    new_words = [token[0] for token in new]
    before = _TOKEN.findall(edit.before)
    after = _TOKEN.findall(edit.after)
    matcher = SequenceMatcher(None, old_words, new_words, autojunk=False)
    opcodes = [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]
    if len(opcodes) > MAX_CHANGES or matcher.ratio() < MIN_SIMILARITY:
        return []
    changes = list[TokenChange]()
    for _, old_start, old_end, new_start, new_end in opcodes:
        removed, added = old_words[old_start:old_end], new_words[new_start:new_end]
        if len(removed) > MAX_OLD or len(added) > MAX_NEW or "\n" in removed or "\n" in added:
            continue
        if removed and added:
            start, end = new[new_start].start(), new[new_end - 1].end()
        else:
            start = new[new_start - 1].end() if new_start else 0
            end = new[new_end].start() if new_end < len(new) else len(edit.new)
        change = TokenChange(
            old=tuple(removed),
            new=tuple(added),
            left=tuple([*before, *new_words[:new_start]][-CONTEXT:]),
            right=tuple([*old_words[old_end:], *after][:CONTEXT]),
            text=edit.new[start:end],
        )
        changes.append(change)
    return changes


def _sites(text: str, changes: Sequence[TokenChange], ages: Sequence[int]) -> Iterator[Site]:
    """The sites of changes with the same tokens."""
    change = changes[0]
    matches = list(islice(_matches(text, change), MAX_SITES + 1))
    if len(matches) > MAX_SITES:
        return
    num_new = text.count(change.new[0]) if change.new else 0
    for match in matches:
        start, end = match.span()
        before = tuple(_TOKEN.findall(text, max(0, start - MAX_NEARBY), start)[-CONTEXT:])
        after = tuple(token[0] for token in islice(_TOKEN.finditer(text, end), CONTEXT))
        if not change.old and before[-len(change.new) :] == change.new:
            continue  # the tokens are there already
        yield Site(
            start=start,
            end=end,
            change=change,
            left=max(num_shared(same.left[::-1], before[::-1]) for same in changes),
            right=max(num_shared(same.right, after) for same in changes),
            age=min(ages),
            num_edits=len(ages),
            num_sites=len(matches),
            num_new=num_new,
        )


def _matches(text: str, change: TokenChange) -> Iterator[re.Match[str]]:
    """The places of what a change replaces. A search for a literal is fast, so the text before it is compared later."""
    pattern = _pattern(change)
    for match in re.finditer(pattern, text) if pattern else ():
        start = match.start()
        is_inside_name = start and is_word(text[start - 1]) and is_word(text[start : start + 1])
        if not is_inside_name:
            yield match


def _pattern(change: TokenChange) -> str:
    """An expression that matches what a change replaces; empty where nothing says where to insert."""
    if change.old and change.new:
        return _spelled(change.old)
    if not change.left or not change.right or change.left[-1] == "\n":
        return ""
    left, right = _spelled(change.left[-1:]), _spelled(change.right[:1])
    return f"(?<={left}){_BLANKS}{_spelled(change.old)}{_BLANKS}(?={right})"


def _spelled(tokens: Sequence[str]) -> str:
    """An expression for tokens with any blanks between them."""
    end = r"\b" if tokens and _NAME.fullmatch(tokens[-1]) else ""
    return _BLANKS.join(map(re.escape, tokens)) + end
