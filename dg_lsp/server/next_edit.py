"""Next edits of a session: the histories of its documents, and what is proposed to the client.

The histories hold text of open documents in memory only. A document that is excluded has none.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dg_lsp.context.edit_history import Edit, EditHistory
from dg_lsp.context.eligibility import Eligibility
from dg_lsp.engine.next_edit import Proposal, next_edits
from dg_lsp.server.documents import Change, Document, DocumentStore

PAUSE_SECONDS = 0.3
"""Nothing is proposed while the user types: the last change of the document must be this old."""


@dataclass(frozen=True, slots=True)
class NextEdits:
    """The proposals for a document, the most probable first, or the reason why there is none."""

    proposals: Sequence[Proposal] = ()
    reason: str = ""


@dataclass(slots=True)
class _Past:
    """What happened in one document."""

    history: EditHistory = field(default_factory=EditHistory)
    changed_at: float = 0.0  # seconds
    shown: set[tuple[str, str]] = field(default_factory=set)
    """Proposals that the client displayed: the line, and what it would become."""
    dismissed: set[tuple[str, str]] = field(default_factory=set)


class NextEditProvider:
    """Follows the edits of a session and proposes the next ones."""

    def __init__(self, documents: DocumentStore, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._documents = documents
        self._clock = clock
        self._pasts: dict[str, _Past] = {}

    def change(self, uri: str, text: str, changes: Sequence[Change]) -> None:
        """Records the changes of a document; `text` is the one before them."""
        past = self._pasts.setdefault(uri, _Past())
        past.changed_at = self._clock()
        for change in changes:
            past.history.change(text, change.start, change.end, change.text, past.changed_at)
            text = text[: change.start] + change.text + text[change.end :]
        # the user went on without what was displayed, unless it is in the text now
        edits = {edit.new.rstrip("\r\n") for edit in past.history.edits(text)}
        past.dismissed |= {(old, new) for old, new in past.shown if new not in edits}
        past.shown.clear()

    def close(self, uri: str) -> None:
        """Forgets a document."""
        self._pasts.pop(uri, None)

    def record_shown(self, uri: str, line: str, new_line: str) -> None:
        """The client displayed a proposal; the same one is not made again if the user goes on without it."""
        if (past := self._pasts.get(uri)) is not None:
            past.shown.add((line, new_line))

    async def propose(self, document: Document, eligibility: Eligibility) -> NextEdits:
        """The proposals once the user pauses. Reasons are sentences without a full stop."""
        if not eligibility.is_served:
            self.close(document.uri)
            return NextEdits(reason=eligibility.reason)
        past = self._pasts.get(document.uri)
        edits = past.history.edits(document.lines.text) if past is not None else []
        if past is None or not edits:
            return NextEdits(reason="the document was not edited lately")
        await asyncio.sleep(max(0.0, past.changed_at + PAUSE_SECONDS - self._clock()))
        if self._documents.get(document.uri) is not document:
            return NextEdits(reason="the document has changed")
        return _proposals(document, edits, past)


def _proposals(document: Document, edits: Sequence[Edit], past: _Past) -> NextEdits:
    proposals = next_edits(document.lines, edits, document.language)
    if not proposals:
        return NextEdits(reason="no recent edit is likely to be repeated elsewhere")
    left = [proposal for proposal in proposals if proposal.changed_line(document.lines) not in past.dismissed]
    return NextEdits(left) if left else NextEdits(reason="the user has gone on without this edit before")
