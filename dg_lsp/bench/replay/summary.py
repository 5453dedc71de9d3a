"""Summary of replayed sessions. Cancelled requests count as misses."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from dg_lsp.bench.metrics import Quantiles, Summary, by_kind, rounded, share, summarize
from dg_lsp.bench.replay.session import AcceptedPart, AcceptEvent, Event, KeyEvent, Replay, RequestEvent
from dg_lsp.bench.replay.typing_tasks import Selection
from dg_lsp.bench.runs import Run
from dg_lsp.bench.tables import Table, count, decoder_tables, milliseconds, percent, summary_table

_SHARES = (
    "keystrokes_saved",
    "chars_accepted_share",
    "acceptance_rate",
    "reversal_rate",
    "quiet_rate",
    "wasted_share",
)


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Numbers of one or several sessions. Times in milliseconds."""

    summary: Summary
    """Over all requests, including cancelled ones."""
    num_cancelled: int
    answer_ms: Quantiles
    """From a request to its answer, over the requests that were not cancelled."""
    num_displayed: int
    num_accepted: dict[AcceptedPart, int]
    num_typed_through: int
    """Items that were typed to their end by hand."""
    keys_by_hand: int
    """Keys of the text without a model."""
    keys_typed: int
    keys_accepting: int
    """Key presses that accepted something."""
    chars: int
    chars_accepted: int
    num_finished_lines: int
    """Answers at the end of a finished line, where nothing should be shown."""
    num_quiet: int
    """Those of them that showed nothing."""
    num_confirmable: int
    """Answers with an item while the keys still matched the last item."""
    num_reversed: int
    """Those of them that started differently."""
    model_ms: float
    wasted_ms: float
    """Model time of requests whose item was never accepted."""
    unshown_ms: float
    """Model time of requests whose item was never displayed."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Summary of all events."""
        listed = list(events)
        requests = [event for event in listed if isinstance(event, RequestEvent)]
        keys = [event for event in listed if isinstance(event, KeyEvent)]
        accepts = [event for event in listed if isinstance(event, AcceptEvent)]
        answered = [event for event in requests if not event.is_cancelled]
        finished = [event for event in answered if event.is_line_finished]
        reversals = [event.is_reversal for event in requests if event.is_reversal is not None]
        accepted_cases = {event.case for event in accepts}
        chars_accepted = sum(len(event.text) for event in accepts)

        def model_ms(chosen: Iterable[RequestEvent]) -> float:
            return sum(event.attempt.model_ms or 0.0 for event in chosen)

        return cls(
            summary=summarize(event.attempt for event in requests),
            num_cancelled=len(requests) - len(answered),
            answer_ms=Quantiles.of(event.attempt.latency_ms for event in answered),
            num_displayed=sum(event.is_displayed for event in requests),
            num_accepted={part: sum(event.part is part for event in accepts) for part in AcceptedPart},
            num_typed_through=sum(event.completes is not None for event in keys),
            keys_by_hand=len(keys) + sum(event.num_keys for event in accepts),
            keys_typed=len(keys),
            keys_accepting=sum(event.presses for event in accepts),
            chars=sum(len(event.key) for event in keys) + chars_accepted,
            chars_accepted=chars_accepted,
            num_finished_lines=len(finished),
            num_quiet=sum(not event.attempt.shown for event in finished),
            num_confirmable=len(reversals),
            num_reversed=sum(reversals),
            model_ms=model_ms(requests),
            wasted_ms=model_ms(event for event in requests if event.attempt.case not in accepted_cases),
            unshown_ms=model_ms(event for event in requests if not event.is_displayed),
        )

    @property
    def keystrokes_saved(self) -> float:
        """Share of the keys by hand, minus the presses that accept."""
        return share(self.keys_by_hand - self.keys_typed - self.keys_accepting, self.keys_by_hand)

    @property
    def chars_accepted_share(self) -> float:
        """Share of the text that came from the model."""
        return share(self.chars_accepted, self.chars)

    @property
    def acceptance_rate(self) -> float:
        """Share of the displayed items that were accepted, in whole or in part."""
        return share(sum(self.num_accepted.values()), self.num_displayed)

    @property
    def reversal_rate(self) -> float:
        """Share of the answers that started differently from a matching item."""
        return share(self.num_reversed, self.num_confirmable)

    @property
    def quiet_rate(self) -> float:
        """Share of the answers at the end of a finished line that showed nothing."""
        return share(self.num_quiet, self.num_finished_lines)

    @property
    def wasted_share(self) -> float:
        """Share of the model time."""
        return share(self.wasted_ms, self.model_ms)

    def json(self) -> dict[str, Any]:
        """Plain JSON values: the counts, the shares, and those of the summary over all requests."""
        tree = {**dataclasses.asdict(self), **{name: getattr(self, name) for name in _SHARES}}
        del tree["summary"]
        return {**self.summary.json(), **rounded(tree)}

    def table(self) -> Table:
        """All numbers for a reader."""
        summary = self.summary
        accepted = ", ".join(f"{num} {part}" for part, num in self.num_accepted.items())
        rows = (
            ("requests", f"{summary.num}, {self.num_cancelled} of them cancelled by the next key"),
            ("TTFUE of hits", _quantiles(summary.ttfue_ms)),
            ("useful by", ", ".join(f"{percent(part)} by {cut} ms" for cut, part in summary.useful_by.items())),
            ("misses", f"{percent(summary.miss_rate)}, including cancelled requests"),
            ("answered after", _quantiles(self.answer_ms)),
            (
                "show rate",
                f"{percent(summary.show_rate)} of the requests; {count(self.num_displayed, 'item')} displayed",
            ),
            ("acceptance rate", f"{percent(self.acceptance_rate)} of the displayed items ({accepted})"),
            ("typed through", count(self.num_typed_through, "item")),
            ("reversals between requests", f"{percent(self.reversal_rate)} of {self.num_confirmable} answers"),
            (
                "quiet rate",
                f"{percent(self.quiet_rate)} of {self.num_finished_lines} answers at ends of finished lines",
            ),
            ("keystrokes saved", f"{percent(self.keystrokes_saved)} of {self.keys_by_hand}"),
            ("characters accepted", f"{percent(self.chars_accepted_share)} of {self.chars}"),
            ("model time", milliseconds(self.model_ms)),
            ("wasted model time", f"{percent(self.wasted_share)}, of requests whose item was not accepted"),
            ("model time per useful edit", milliseconds(summary.model_ms_per_useful)),
        )
        return Table("Typing with the model", ("measure", "value"), {"": rows})


def replay_json(run: Run, summary: ReplaySummary) -> dict[str, Any]:
    """The object that `bench replay --json` prints."""
    return {
        "model": run.header.model,
        "model_sha256": run.header.model_sha256,
        "files": list(run.header.data),
        "is_complete": run.is_complete,
        "length_knowledge": "none",
        **run.header.options,
        **summary.json(),
        "machine": dataclasses.asdict(run.header.machine),
    }


def replay_tables(run: Run, summary: ReplaySummary) -> list[Table]:
    """The numbers of the session, and summaries of the requests."""
    return [summary.table(), summary_table("Requests", by_kind(run.attempts)), *decoder_tables(run.attempts)]


def assumptions(replay: Replay, selection: Selection) -> Iterator[str]:
    """The typing and editor models, one sentence each."""
    typing, editor = replay.typing, replay.editor
    in_word, word, line = (ms / typing.speed for ms in (typing.in_word_ms, typing.word_start_ms, typing.line_start_ms))
    around = {
        Selection.ONWARDS: "the text before it in the file, and nothing after the cursor",
        Selection.REGION: "the rest of the file, around the typed lines",
        Selection.BODIES: "the rest of the file, around each function body",
    }
    yield f"Buffer: {around[selection]}."
    yield (
        f"Typing: log-normal, mean {in_word:.0f} ms in a word, {word:.0f} before a word, {line:.0f} before a line, "
        f"spread {typing.spread:g}; {typing.reaction_ms:.0f} ms to accept; seed {replay.seed}."
    )
    yield (
        f"Editor: sends a request {editor.debounce_ms:.0f} ms after a key, which no time below includes; "
        f"on a key that matches an item: {editor.on_matching_key}."
    )


def _quantiles(times: Quantiles) -> str:
    return f"p50 {milliseconds(times.p50)}, p90 {milliseconds(times.p90)}"
