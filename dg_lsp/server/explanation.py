"""Why an automatic completion shows nothing at a position: one sentence, for editors and the command line."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from dg_lsp.context.eligibility import Cause, Eligibility
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillResult
from dg_lsp.postprocess.validate import Reason, Rejection
from dg_lsp.settings import CompletionSettings


class Visibility(StrEnum):
    """The outcome of a completion that was requested from the model."""

    SHOWN = "shown"
    HIDDEN = "hidden"  # improbable, or of a kind that is shown only on request
    REFUSED = "refused"  # by a check
    UNFINISHED = "deadline"
    NO_MODEL = "no-model"  # it is loading, or could not be opened or reached


@dataclass(frozen=True, slots=True)
class Explanation:
    """The outcome at one position."""

    outcome: Visibility | Cause
    sentence: str
    text: str = ""  # of the completion, shown or not
    milliseconds: float = 0.0  # of the model

    @classmethod
    def of(cls, eligibility: Eligibility) -> Self | None:
        """Why nothing is computed; None where a completion is."""
        return None if eligibility.cause is None else cls(eligibility.cause, eligibility.sentence)


def explain(result: FillResult, settings: CompletionSettings, engine: Engine) -> Explanation:
    """What became of an automatic request with this result."""
    spent = result.timings.total
    if result.candidates:
        best = result.candidates[0]
        sentence = f"The completion is shown: {_percent(best.confidence)} probable, after {spent:.0f} ms."
        return Explanation(Visibility.SHOWN, sentence, best.text, spent)
    if result.is_unfinished:
        late = f"nothing was stable after {settings.deadline_ms:.0f} ms (completion.deadline_ms)"
        sentence = f"Too slow with {engine.spec.name}: {late}."
        return Explanation(Visibility.UNFINISHED, sentence, milliseconds=spent)
    hidden = next(iter(result.hidden), None)
    if hidden is not None:
        if hidden.fault is None:
            limit = f"below {_percent(settings.min_confidence)} (completion.min_confidence)"
            sentence = f"The completion is hidden: {_percent(hidden.confidence)} probable, {limit}."
        else:
            sentence = f"The completion is hidden unless you request it: it {hidden.fault.problem}."
        return Explanation(Visibility.HIDDEN, sentence, hidden.text, spent)
    rejection = next(iter(result.rejections), Rejection(Reason.EMPTY))
    verdict = "The completion is refused: it" if rejection.text.strip() else "There is no completion: the result"
    return Explanation(Visibility.REFUSED, f"{verdict} {rejection.reason.problem}.", rejection.text, spent)


def _percent(share: float) -> str:
    """Below 10 % with three digits, so that a share just below the usual limit differs from it."""
    return f"{100 * share:.3g} %" if share < 0.1 else f"{100 * share:.0f} %"
