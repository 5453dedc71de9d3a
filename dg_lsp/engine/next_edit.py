"""Next edits that repeat the last ones: changed tokens, found again in their context. No model takes part.

The probability that a repetition is right is that of a logistic model over named features, whose weights in
`next_edit.toml` were fitted to the histories of public repositories (`training/dg_training/next_edits.py`).
"""

import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import resources
from itertools import islice

from dg_lsp.context.document import LINE_END, LineIndex, is_word, num_shared
from dg_lsp.context.edit_history import Edit
from dg_lsp.context.syntax_tree import SyntaxCheck
from dg_lsp.postprocess.text_edits import Change, all_applied, shared_ends

PAUSE_SECONDS = 0.3
"""Nothing is proposed while the user types: the last change must be this old, unless the user accepted or saved."""
MIN_CONFIDENCE = 0.6
"""On histories that the weights were not fitted to, 67 % of the shown proposals are right (docs/log.md)."""
MAX_PROPOSALS = 20
MAX_SITES = 100  # of one change; a change with more is not repeated
NUM_EDITS = 4  # newest edits that are repeated
MAX_CHANGES = 6  # changes of tokens in an edit; one with more is no pattern
MIN_SIMILARITY = 0.3  # of the tokens before and after an edit that is a pattern
MAX_OLD, MAX_NEW = 8, 12  # tokens that a change replaces, and by which it does
CONTEXT = 6  # tokens on each side of a change that are compared
MAX_AROUND = 400  # characters of its lines on each side of an edit
MAX_NEARBY = 80  # characters before a site that its context is read from

_WEIGHTS = tomllib.loads((resources.files(__package__) / "next_edit.toml").read_text(encoding="utf-8"))["weights"]
_TOKEN = re.compile(
    r"""[^\W\d]\w* | \d[\w.]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | \n """
    r"""| == | != | <= | >= | => | -> | := | && | \|\| | :: | \.\.\. | \S""",
    re.VERBOSE,
)
"""The tokens of a text in any language; a line end is a token, blanks are none."""
_NAME = re.compile(r"[^\W\d]\w*")
_BLANKS = r"[ \t]*"
Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proposal(Change):
    """One edit, and the probability that it is right. A repetition is inside one line."""

    confidence: float
    repeated: frozenset[tuple[Tokens, Tokens]] = frozenset()
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

    old: Tokens
    new: Tokens
    left: Tokens
    right: Tokens
    text: str
    """Of the new tokens; where no token was replaced or none is left, with the blanks up to the tokens around them."""

    @property
    def kind(self) -> str:
        """What was done: `rename`, `replace`, `insert` or `delete`."""
        if not (self.old and self.new):
            return "delete" if self.old else "insert"
        tokens = (*self.old, *self.new)
        return "rename" if len(tokens) == 2 and all(map(_NAME.fullmatch, tokens)) else "replace"


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a change may be repeated, and the names of the features that its probability depends on."""

    line: int
    start: int
    end: int
    change: TokenChange
    features: Tokens

    @property
    def confidence(self) -> float:
        """The probability that the change is right here."""
        return 1 / (1 + math.exp(-sum(_WEIGHTS.get(name, 0.0) for name in self.features)))


def next_edits(lines: LineIndex, edits: Sequence[Edit], language_id: str) -> list[Proposal]:
    """The first repetitions of the last edits that break no code and take none of them back, see `repetitions`.

    Those behind the start of the newest edit come first, then those before it, in the order of the text.
    """
    syntax = SyntaxCheck(lines.text, language_id)
    proposals = [
        proposal
        for proposal in repetitions(lines, edits)[:MAX_PROPOSALS]
        if not takes_back(proposal, lines, edits, syntax)
        and not syntax.is_broken_by(proposal.start, proposal.end, proposal.text)
    ]
    return from_newest_edit(proposals, lines, edits)


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


def from_newest_edit(proposals: Iterable[Proposal], lines: LineIndex, edits: Sequence[Edit]) -> list[Proposal]:
    """The proposals in the order in which the user comes to them: below the start of the newest edit, then above it."""
    first = edits[0].line if edits else 0
    return sorted(proposals, key=lambda proposal: (lines.line_at(proposal.start) < first, proposal.start))


def repetitions(lines: LineIndex, edits: Sequence[Edit]) -> list[Proposal]:
    """The last edits repeated elsewhere in a text, the most probable first, at most one for each line.

    The edits come newest first and are those of this text.
    """
    sites_by_line = defaultdict[int, list[Site]](list)
    for site in sites_of(lines, edits):
        sites_by_line[site.line].append(site)
    proposals = [_proposal(lines.text, sites) for sites in sites_by_line.values()]
    probable = [proposal for proposal in proposals if proposal.confidence >= MIN_CONFIDENCE]
    return sorted(probable, key=lambda proposal: -proposal.confidence)


def _proposal(text: str, sites: Sequence[Site]) -> Proposal:
    """The most probable repetition on a line, together with those on it that are at least half as probable."""
    ranked = sorted(sites, key=lambda site: -site.confidence)
    best = ranked[0].confidence
    chosen = list[Site]()
    for site in ranked:
        is_free = all(
            (site.end <= taken.start or site.start >= taken.end) and (site.start, site.end) != (taken.start, taken.end)
            for taken in chosen
        )
        if site.confidence >= best / 2 and is_free:
            chosen.append(site)
    start, end = min(site.start for site in chosen), max(site.end for site in chosen)
    changes = (Change(site.start - start, site.end - start, site.change.text) for site in chosen)
    repeated = frozenset((site.change.old, site.change.new) for site in chosen)
    return Proposal(start, end, all_applied(changes, text[start:end]), best, repeated)


def sites_of(lines: LineIndex, edits: Sequence[Edit]) -> Iterator[Site]:
    """The sites outside the edited lines where a change of the newest edits could be repeated."""
    edited = {line for edit in edits for line in range(edit.line, edit.line + edit.new.count("\n"))}
    repeated: dict[tuple[Tokens, Tokens], list[tuple[int, TokenChange]]] = {}
    for age, edit in enumerate(edits[:NUM_EDITS]):
        for change in changes_of(edit):
            if (change.new, change.old) not in repeated:  # else the user took it back
                repeated.setdefault((change.old, change.new), []).append((age, change))
    for aged_changes in repeated.values():
        sites = _sites(lines, aged_changes, edits[0].line)
        yield from (site for site in sites if site.line not in edited)


def changes_of(edit: Edit) -> list[TokenChange]:
    """The changes of tokens that an edit consists of; none if the edit is no pattern."""
    # the lines of an edit may be thousands of times longer than it, as in a minified file
    head, tail = (max(0, size - MAX_AROUND) for size in shared_ends(edit.old, edit.new))
    new_text = edit.new[head : len(edit.new) - tail]
    old_words = _TOKEN.findall(edit.old[head : len(edit.old) - tail])
    new = list(_TOKEN.finditer(new_text))
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
            end = new[new_end].start() if new_end < len(new) else len(new_text)
        change = TokenChange(
            old=tuple(removed),
            new=tuple(added),
            left=tuple([*before, *new_words[:new_start]][-CONTEXT:]),
            right=tuple([*old_words[old_end:], *after][:CONTEXT]),
            text=new_text[start:end].rstrip("\r"),
        )
        changes.append(change)
    return changes


def _sites(lines: LineIndex, aged_changes: Sequence[tuple[int, TokenChange]], newest_line: int) -> Iterator[Site]:
    """The sites of changes with the same tokens, which come with the number of edits since then, the newest first."""
    text = lines.text
    age, change = aged_changes[0]
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
        left = max(num_shared(same.left[::-1], before[::-1]) for _, same in aged_changes)
        right = max(num_shared(same.right, after) for _, same in aged_changes)
        line = lines.line_at(start)
        at_least = {
            "edits": (len(aged_changes), (2, 3)),
            "new": (num_new, (1, 4)),
            "old tokens": (len(change.old), (2, 4)),
            "new tokens": (len(change.new), (3,)),
            "below": (line - newest_line, (1,)),
            "old name": (len(change.old[0]) if change.old else 0, (4,)),
        }
        at_most = {
            "age": (age, (0,)),
            "sites": (len(matches), (1, 3, 10, 30)),
            "lines": (abs(line - newest_line), (2, 5, 15, 50)),
        }
        names = [f"{name} {limit}" for name, (num, limits) in at_least.items() for limit in limits if num >= limit]
        names += [f"{name} {limit}" for name, (num, limits) in at_most.items() for limit in limits if num <= limit]
        if change.kind == "rename":
            names += [f"rename, {name}" for name in names]
        context = f"{change.kind} {min(left, 4)} {min(right, 4)}"
        yield Site(line, start, end, change, ("bias", context, *names))


def _matches(text: str, change: TokenChange) -> Iterator[re.Match[str]]:
    """The places of what a change replaces; none where no token says where to insert."""
    pattern = _spelled(change.old)
    if not (change.old and change.new):
        if not change.left or not change.right or change.left[-1] == "\n":
            return
        left, right = _spelled(change.left[-1:]), _spelled(change.right[:1])
        # of two expressions for the same blanks, a line with thousands of them would try every division
        pattern = f"(?<={left}){_BLANKS}{pattern}{_BLANKS if pattern else ''}(?=\r?{right})"
    for match in re.finditer(pattern, text):
        start = match.start()
        # the name before is not a part of the expression, because a search for a literal is faster
        if not (start and is_word(text[start - 1]) and is_word(text[start : start + 1])):
            yield match


def _spelled(tokens: Sequence[str]) -> str:
    """An expression for tokens with any blanks between them."""
    end = r"\b" if tokens and _NAME.fullmatch(tokens[-1]) else ""
    return _BLANKS.join(map(re.escape, tokens)) + end
