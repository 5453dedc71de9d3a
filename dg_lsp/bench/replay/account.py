"""A typist's session in numbers. A miss stays a miss, and a cancelled request is one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from dg_lsp.bench.replay.accept import Level
from dg_lsp.bench.replay.events import Accepted, Asked, Event, Typed
from dg_lsp.metrics.summary import Quantiles, Summary, summarize


@dataclass(frozen=True, slots=True)
class Account:
    """What was asked, shown, taken and spared. Times in milliseconds."""

    summary: Summary
    """Over all requests, cancelled ones included."""
    num_cancelled: int
    answer_ms: Quantiles
    """From a request to its answer, over those that were answered, with or without an item."""
    num_displayed: int
    """Items that came on the screen."""
    num_accepted: dict[Level, int]
    num_typed_through: int
    """Items that were typed to their end by hand."""
    keys_by_hand: int
    """That the text takes without a model."""
    keys_typed: int
    keys_accepting: int
    """Presses that accepted something."""
    chars: int
    chars_accepted: int
    num_finished_lines: int
    """Answered requests at the end of a finished line, where nothing should be shown."""
    num_quiet: int
    """Those of them at which nothing was."""
    num_confirmable: int
    """Answers with an item that came while what was typed still matched the last item."""
    num_reversed: int
    """Those of them that began otherwise."""
    model_ms: float
    wasted_ms: float
    """Of requests whose item was never accepted, or that had none."""
    unshown_ms: float
    """Of requests whose item never came on the screen, or that had none."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Everything that happened, of one passage or of several."""
        listed = list(events)
        asked = [event for event in listed if isinstance(event, Asked)]
        typed = [event for event in listed if isinstance(event, Typed)]
        accepted = [event for event in listed if isinstance(event, Accepted)]
        answered = [event for event in asked if not event.is_cancelled]
        finished = [event for event in answered if event.is_line_finished]
        confirmable = [event.takes_back for event in asked if event.takes_back is not None]
        accepted_sites = {event.site for event in accepted}
        chars_accepted = sum(len(event.text) for event in accepted)
        return cls(
            summary=summarize(event.attempt for event in asked),
            num_cancelled=len(asked) - len(answered),
            answer_ms=Quantiles.of(event.attempt.latency_ms for event in answered),
            num_displayed=sum(event.is_displayed for event in asked),
            num_accepted={level: sum(event.level is level for event in accepted) for level in Level},
            num_typed_through=sum(event.finishes is not None for event in typed),
            keys_by_hand=len(typed) + sum(event.num_keys for event in accepted),
            keys_typed=len(typed),
            keys_accepting=sum(event.presses for event in accepted),
            chars=sum(len(event.key) for event in typed) + chars_accepted,
            chars_accepted=chars_accepted,
            num_finished_lines=len(finished),
            num_quiet=sum(not event.attempt.shown for event in finished),
            num_confirmable=len(confirmable),
            num_reversed=sum(confirmable),
            model_ms=sum(event.attempt.model_ms or 0.0 for event in asked),
            wasted_ms=sum(event.attempt.model_ms or 0.0 for event in asked if event.attempt.site not in accepted_sites),
            unshown_ms=sum(event.attempt.model_ms or 0.0 for event in asked if not event.is_displayed),
        )

    @property
    def keystrokes_saved(self) -> float:
        """Share of the keys by hand that were spared; the presses that accept are not."""
        return _share(self.keys_by_hand - self.keys_typed - self.keys_accepting, self.keys_by_hand)

    @property
    def chars_accepted_share(self) -> float:
        """Share of the text that came from the model."""
        return _share(self.chars_accepted, self.chars)

    @property
    def acceptance_rate(self) -> float:
        """Of the items that came on the screen, those that were taken, wholly or in part."""
        return _share(sum(self.num_accepted.values()), self.num_displayed)

    @property
    def reversal_rate(self) -> float:
        """Of the answers that could have confirmed the last item, those that took it back."""
        return _share(self.num_reversed, self.num_confirmable)

    @property
    def quiet_rate(self) -> float:
        """Of the answers at the end of a finished line, those that showed nothing."""
        return _share(self.num_quiet, self.num_finished_lines)

    @property
    def wasted_share(self) -> float:
        """Of the model time."""
        return _share(self.wasted_ms, self.model_ms)

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        summary = self.summary.json()
        kept = ("ttfue_ms", "useful_by", "miss_rate", "show_rate", "model_ms_per_useful")
        return {
            "num": self.summary.num,
            "cancelled": self.num_cancelled,
            **{key: summary[key] for key in kept},
            "answer_ms": self.answer_ms.json(),
            "displayed": self.num_displayed,
            "accepted": {level.value: num for level, num in self.num_accepted.items()},
            "acceptance_rate": round(self.acceptance_rate, 4),
            "typed_through": self.num_typed_through,
            "keystrokes": {
                "by_hand": self.keys_by_hand,
                "typed": self.keys_typed,
                "accepting": self.keys_accepting,
            },
            "keystrokes_saved": round(self.keystrokes_saved, 4),
            "chars_accepted": round(self.chars_accepted_share, 4),
            "reversal_rate": round(self.reversal_rate, 4),
            "quiet_rate": round(self.quiet_rate, 4),
            "model_ms": round(self.model_ms, 1),
            "wasted_ms": round(self.wasted_ms, 1),
            "unshown_ms": round(self.unshown_ms, 1),
            "wasted_share": round(self.wasted_share, 4),
            "steps_mean": summary["steps_mean"],
            "tokens_per_forward": summary["tokens_per_forward"],
        }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
