"""Corrections: what the buffer around one cursor knows better than a small model.

A confident repetition and a known attribute override the prediction. Both depend on the text left of a position, so of
a canvas only the leftmost masks are corrected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.canvas.attributes import Attributes, KnownNames
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.repetition import Repetition, RepetitionMatch
from dg_lsp.diffusion.denoiser import Prediction

KNOWN_SHARE = 0.75
"""Assumed probability that the right attribute is among the known ones, where the model predicts another name.

The buffer knows it at 63 of 73 tuning places, those where the model agrees included.
"""


@dataclass(frozen=True, slots=True)
class Corrections:
    """The sources of one request; without any, nothing is corrected."""

    repetition: Repetition | None = None
    attributes: Attributes | None = None

    def after(self, fills: Sequence[TokenIds]) -> "PassCorrections":
        """The corrections of a pass at positions with these partial fills before them, shape (N,) each."""
        attributes = self.attributes
        names = [attributes.following(fill) if attributes else None for fill in fills]
        return PassCorrections(self, fills, names)


NO_CORRECTIONS = Corrections()


@dataclass(frozen=True, slots=True)
class PassCorrections:
    """Corrections of one pass, by the number of the partial fill."""

    sources: Corrections
    fills: Sequence[TokenIds]
    names: Sequence[KnownNames | None]

    @property
    def among(self) -> list[TokenIds]:
        """The sets of tokens of which the pass must return the best ones."""
        return [one.ids for one in self._different]

    @property
    def _different(self) -> list[KnownNames]:
        return list(dict.fromkeys(one for one in self.names if one is not None))

    def corrected(self, prediction: Prediction, number: int, positions: Sequence[int]) -> Prediction:
        """The prediction with corrections from the first position on, which follows the fill with this number."""
        repetition, fill, matches = self.sources.repetition, self.fills[number], list[tuple[int, RepetitionMatch]]()
        for at in positions:
            match = repetition.following(fill) if repetition else None
            if match is None and not matches:
                match = self._attribute(prediction, number, at)
            if match is None:
                break
            matches.append((at, match))
            fill = np.append(fill, np.int32(match.token))
        return _overridden(prediction, matches)

    def _attribute(self, prediction: Prediction, number: int, at: int) -> RepetitionMatch | None:
        """The best token of a known name, if the predicted one makes another name."""
        names = self.names[number]
        if names is None or prediction.among_ids is None or prediction.among_share is None:
            return None
        if not names.are_contradicted(prediction.argmax_ids[at : at + 1]):
            return None
        column = self._different.index(names)
        share = float(prediction.among_share[at, column])
        return RepetitionMatch(int(prediction.among_ids[at, column]), KNOWN_SHARE * share)


def _overridden(prediction: Prediction, matches: Sequence[tuple[int, RepetitionMatch]]) -> Prediction:
    """The prediction with a corrected token at each of these positions."""
    if not matches:
        return prediction
    argmax_ids, sampled_ids = prediction.argmax_ids.copy(), prediction.sampled_ids.copy()
    confidence, sampled_confidence = prediction.confidence.copy(), prediction.sampled_confidence.copy()
    for at, match in matches:
        agrees = argmax_ids[at] == match.token
        confidence[at] = max(confidence[at], match.confidence) if agrees else match.confidence
        if sampled_ids[at] == argmax_ids[at] or sampled_ids[at] == match.token:
            sampled_ids[at], sampled_confidence[at] = match.token, confidence[at]
        else:  # the other tokens share what the correction leaves
            sampled_confidence[at] = min(sampled_confidence[at], 1 - confidence[at])
        argmax_ids[at] = match.token
    return replace(
        prediction,
        argmax_ids=argmax_ids,
        sampled_ids=sampled_ids,
        confidence=confidence,
        sampled_confidence=sampled_confidence,
    )
