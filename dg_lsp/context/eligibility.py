"""Whether a model is used for a document and at a cursor, and the reason if it is not.

This is the only place that decides it. Editors, `dg-lsp why`, the audit log and the HTTP server show the reason.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from dg_lsp.context.document import Cursor, Snapshot
from dg_lsp.context.exclusion import Exclusion


class Cause(StrEnum):
    """The kind of reason why nothing is computed."""

    EXCLUDED = "excluded"  # the model must not see the document
    UNSUPPORTED = "unsupported"  # the model does not know the language
    NOT_REQUESTED = "not-requested"  # nothing is computed at this position, or the document is not open


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The decision for a document, or for a cursor in it."""

    cause: Cause | None = None  # None where the model is used
    reason: str = ""  # without a full stop; empty where the model is used

    @property
    def is_served(self) -> bool:
        """Whether the model is used."""
        return self.cause is None

    @property
    def sentence(self) -> str:
        """The reason as a sentence; empty where the model is used."""
        if self.is_served:
            return ""
        # the reason against a language begins with the name of the model
        first = self.reason[:1] if self.cause is Cause.UNSUPPORTED else self.reason[:1].upper()
        return f"{first}{self.reason[1:]}."

    @classmethod
    def of_document(cls, snapshot: Snapshot, exclusion: Exclusion, language_problem: str = "") -> Self:
        """The decision for a document; `language_problem` is that of the model, see `ModelSpec.language_problem`."""
        if (reason := exclusion.exclusion_reason(snapshot)) is not None:
            return cls(Cause.EXCLUDED, f"this file is not sent to the model: {reason}")
        if language_problem:
            return cls(Cause.UNSUPPORTED, language_problem)
        return cls()

    def while_typing(self, snapshot: Snapshot, offset: int, trigger: str) -> Self:
        """The decision for an automatic completion at an offset of the document that this decision is about.

        `trigger` is the setting `completion.trigger`.
        """
        if not self.is_served:
            return self
        if trigger == "manual":
            return type(self)(Cause.NOT_REQUESTED, "completions come only on request (completion.trigger is manual)")
        if Cursor.at(snapshot.text, offset).is_deep_inside_word:
            return type(self)(Cause.NOT_REQUESTED, "the cursor is inside a word: nothing is suggested there")
        return self
