"""What was not useful, by reason, with examples folded."""

from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest

from dg_lsp.bench.report.chart import table
from dg_lsp.bench.report.markup import Html, element, join
from dg_lsp.bench.report.wording import count, milliseconds, percent
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import CUTS

WRONG, LATE, NOTHING = "wrong", "late", "nothing"
NUM_EXAMPLES = 5
_MOST_LINES, _MOST_CHARACTERS = 10, 200

_MEANINGS = {
    WRONG: "Shown, and its first line is not the reference's.",
    LATE: f"Useful, but after {CUTS[-1]:,} ms; no miss.",
    NOTHING: "Nothing was shown, and no reason is known.",
    "empty": "Nothing, or only blanks.",
    "repeats-suffix": "It only said what already follows the cursor.",
    "repeats-prefix": "It said the line before the cursor again.",
    "repeats-itself": "The same few words over and over.",
    "syntax-error": "It would have added a syntax error.",
    "unchanged": "It said what was there already.",
    "indentation": "It would have left the lines below too deep.",
    "not-text": "Its bytes are no UTF-8, or hold control characters.",
    "low-confidence": "It was less likely to be right than an automatic completion has to be.",
    "unfinished": "The deadline came before anything was stable.",
}


def outcome(attempt: Attempt) -> str | None:
    """Why an attempt was of no use; None when it was of use in time."""
    if attempt.ttfue_ms is not None:
        return LATE if attempt.ttfue_ms > CUTS[-1] else None
    return WRONG if attempt.shown else attempt.rejection or NOTHING


def misses(attempts: Mapping[str, Sequence[Attempt]]) -> Html:
    """The table, and examples of each reason; a sentence where nothing was missed."""
    found = {way: _by_reason(listed) for way, listed in attempts.items()}
    reasons = {reason for missed in found.values() for reason in missed}
    by_reason = {reason: [found[way].get(reason, []) for way in attempts] for reason in reasons}
    if not reasons:
        return element("p", "Every request had a useful edit in time.")
    ordered = sorted(reasons, key=lambda reason: (-sum(map(len, by_reason[reason])), reason))
    rows = [(reason, *map(_cell, by_reason[reason], attempts.values())) for reason in ordered]
    hint = f"In time is within {CUTS[-1]:,} ms. Small: the share of all requests."
    counts = table("Without a useful edit in time", ("reason", *attempts), {"": rows}, hint)
    return join((counts, *(_examples(reason, by_reason[reason]) for reason in ordered)))


def _by_reason(attempts: Sequence[Attempt]) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        reason = outcome(attempt)
        if reason is not None:
            found.setdefault(reason, []).append(attempt)
    return found


def _cell(missed: Sequence[Attempt], attempts: Sequence[Attempt]) -> Html:
    share = percent(len(missed) / len(attempts)) if missed else ""
    return join((f"{len(missed):,}" if missed else "–", element("small", share)))


def _examples(reason: str, by_way: Sequence[Sequence[Attempt]]) -> Html:
    """A few of each way in turn."""
    in_turn = (attempt for attempts in zip_longest(*by_way) for attempt in attempts if attempt is not None)
    chosen = list(islice(in_turn, NUM_EXAMPLES))
    shown = f"{reason}: {count(len(chosen), 'example')} of {sum(map(len, by_way)):,}"
    meaning = element("p", _MEANINGS[reason], class_="hint") if reason in _MEANINGS else Html()
    return element("details", element("summary", shown), meaning, *map(_example, chosen), class_="examples")


def _example(attempt: Attempt) -> Html:
    facts = [attempt.way, attempt.kind, milliseconds(attempt.latency_ms)]
    heading = element("p", element("b", attempt.site), "\N{EN SPACE}", ", ".join(fact for fact in facts if fact))
    shown = pair("wanted", attempt.want), pair("shown", attempt.text)
    return element("div", heading, element("div", *shown, class_="pair"), class_="example")


def pair(name: str, text: str) -> Html:
    """One half of a pair of texts to compare."""
    shown = element("pre", element("code", excerpt(text))) if text else element("p", "nothing", class_="hint")
    return element("div", element("p", name, class_="name"), shown)


def excerpt(text: str) -> str:
    """Some lines of it, and of each line some characters."""
    lines = text.replace("\r\n", "\n").split("\n")
    cut = [line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS] + "…" for line in lines[:_MOST_LINES]]
    return "\n".join(cut + ["…"] * (len(lines) > _MOST_LINES))
