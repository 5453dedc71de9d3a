"""Next edits of a session: the histories of its documents, and what is proposed to the client.

The histories hold text of open documents in memory only. A document that is excluded has none.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from dg_lsp.context.document import LineIndex
from dg_lsp.context.edit_history import Author, EditHistory
from dg_lsp.context.exclusion import Eligibility, Exclusion
from dg_lsp.engine.edit_source import NOT_REPEATED, AskModel, NextEditRequest, NextEdits, propose
from dg_lsp.engine.next_edit import PAUSE_SECONDS, Proposal
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.text_edits import Change, all_applied, shared_ends
from dg_lsp.server.documents import Document, DocumentStore
from dg_lsp.server.protocol import is_cancelled_by_client
from dg_lsp.settings import NextEditSettings

MAX_KEPT = 100  # edits of a document that may still be accepted, and edits that the user did not want
HAS_CHANGED = "the document has changed"
LineChange = tuple[str, str]  # a line, and what it would become
Applied = tuple[LineIndex, Change]  # a change, and the text before it


@dataclass(slots=True)
class _Past:
    """What happened in one document."""

    history: EditHistory = field(default_factory=EditHistory)
    offered: dict[str, Proposal] = field(default_factory=dict)  # for the present text, by the names of their items
    shown: set[LineChange] = field(default_factory=set)  # those that the client displayed
    dismissed: deque[LineChange] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    """What the user saw and did not want, or took back."""
    running: asyncio.Future[NextEdits] | None = None  # the work on the present text
    offset: int | None = None  # of the cursor in the present text, if a request had it

    def select(self, lines: LineIndex, is_requested: bool, proposals: Sequence[Proposal]) -> Sequence[Proposal]:
        """The proposals that the user has not dismissed; on request all of them, if no others are left."""
        fresh = [proposal for proposal in proposals if proposal.changed_line(lines) not in self.dismissed]
        return proposals if is_requested and not fresh else fresh


class NextEditProvider:
    """Follows the edits of a session and proposes the next ones."""

    def __init__(
        self,
        documents: DocumentStore,
        exclusion: Exclusion,
        ask_model: AskModel,
        new_name: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask_model` is called where no edit is repeated, `new_name` for each item; `clock` returns seconds."""
        self._documents = documents
        self._exclusion = exclusion
        self._ask_model = ask_model
        self._new_name = new_name
        self._clock = clock
        self._opens_at = 0.0
        """Until then nothing is proposed unasked."""
        self._pasts: dict[str, _Past] = {}

    def change(self, uri: str, lines: LineIndex, changes: Sequence[Applied], *, is_accepted: bool = False) -> None:
        """Records changes that a document with these lines had; `is_accepted` if they inserted a completion."""
        document = self._documents.get(uri)
        assert document is not None
        past = self._pasts.setdefault(uri, _Past())
        moment = self._clock()
        if is_accepted or _is_proposed(lines.text, document.lines.text, past.offered.values()):
            author = Author.ASSISTANT
            self._opens_at = moment
        else:
            author = Author.PROGRAM if _is_by_program(changes, document.lines) else Author.USER
            self._opens_at = moment + PAUSE_SECONDS
            past.dismissed.extend(past.shown)
        for before, change in changes:
            undone = past.history.change(before, change.start, change.end, change.text, moment, author)
            past.dismissed.extend((edit.old.rstrip("\r\n"), edit.new.rstrip("\r\n")) for edit in undone)
        past.offered.clear()
        past.shown.clear()
        past.offset = None
        if past.running is not None:
            past.running.cancel()

    def close(self, uri: str) -> None:
        """Forgets a document, and ends the work on it."""
        past = self._pasts.pop(uri, None)
        if past is not None and past.running is not None:
            past.running.cancel()

    def end_pause(self) -> None:
        """The user accepted something or saved a file, so edits may be proposed without a further pause."""
        self._opens_at = self._clock()

    def record_shown(self, name: str, *, is_dismissed: bool = False) -> None:
        """The client displayed the item of this name, or the user dismissed it: it is not proposed again unasked."""
        for uri, past in self._pasts.items():
            document = self._documents.get(uri)
            if document is not None and name in past.offered:
                change = past.offered[name].changed_line(document.lines)
                past.shown.add(change)
                past.dismissed.extend([change] * is_dismissed)

    async def propose(
        self, document: Document, settings: NextEditSettings, *, offset: int | None = None, is_requested: bool
    ) -> tuple[dict[str, Proposal], str]:
        """The next edits by the names of their items, the next place first, and why there are none.

        They come at once on request, else once the user pauses; `offset` is that of the cursor, if known.
        """
        edits = await self._edits(document, settings, offset, is_requested=is_requested)
        past = self._pasts.get(document.uri)
        if not edits.proposals or past is None or self._documents.get(document.uri) is not document:
            return {}, edits.reason or HAS_CHANGED
        named = {self._new_name(): proposal for proposal in edits.proposals}
        past.offered = {**dict([*past.offered.items()][-MAX_KEPT:]), **named}
        return named, ""

    async def _edits(
        self, document: Document, settings: NextEditSettings, offset: int | None, *, is_requested: bool
    ) -> NextEdits:
        eligibility = Eligibility.of_document(document.snapshot(), self._exclusion)
        if not eligibility.is_served:
            self.close(document.uri)
            return NextEdits(reason=eligibility.reason)
        if not settings.enabled:
            return NextEdits(reason="next edits are off (next_edit.enabled is false)")
        if not is_requested:
            if settings.trigger == "request":
                return NextEdits(reason="next edits come only on request (next_edit.trigger is request)")
            await asyncio.sleep(max(0.0, self._opens_at - self._clock()))
        if self._documents.get(document.uri) is not document:
            return NextEdits(reason=HAS_CHANGED)
        past = self._pasts.get(document.uri, _Past())
        edits = past.history.edits(document.lines, self._clock())
        if not edits:
            return NextEdits(reason="the document was not edited lately")
        past.offset = past.offset if offset is None else offset
        request = NextEditRequest(document.snapshot(), document.lines, tuple(edits), past.offset)
        select = partial(past.select, document.lines, is_requested)
        past.running = asyncio.ensure_future(propose(request, self._ask_model, select))
        try:
            return await past.running
        except DgLspError as error:
            return NextEdits(reason=f"{NOT_REPEATED}; {error}")
        except asyncio.CancelledError:
            if is_cancelled_by_client():
                raise
            # a change of the document, or a newer request, ends the work of the model
            is_same = self._documents.get(document.uri) is document
            return NextEdits(reason="a newer request is computed" if is_same else HAS_CHANGED)


def _is_proposed(text: str, new_text: str, proposals: Collection[Proposal]) -> bool:
    """Whether the new text is the old one with one of the proposals, or with one at all its places."""
    choices = {(proposal,) for proposal in proposals} | {tuple(proposal.places(proposals)) for proposal in proposals}
    return any(new_text == all_applied(chosen, text) for chosen in choices)


def _is_by_program(changes: Sequence[Applied], lines: LineIndex) -> bool:
    """Whether different changes come at once in several lines: not as a user makes them, even with several cursors.

    `lines` are those after the changes.
    """
    together = EditHistory()
    replaced = set[tuple[str, str]]()
    for before, change in changes:
        replaced.add((before.text[change.start : change.end], change.text))
        together.change(before, change.start, change.end, change.text, 0.0)
    if len(replaced) == 1 and "\n" not in "".join(*replaced):
        return False
    pieces = set[tuple[str, str]]()
    for edit in together.edits(lines, 0.0):
        old, new = edit.old.splitlines(), edit.new.splitlines()
        if len(old) != len(new) and min(len(old), len(new)) > 1:
            return True
        pairs = zip(old, new, strict=True) if len(old) == len(new) else [(edit.old, edit.new)]
        for old_line, new_line in pairs:
            head, tail = shared_ends(old_line, new_line)
            pieces.add((old_line[head : len(old_line) - tail], new_line[head : len(new_line) - tail]))
    return len(pieces - {("", "")}) > 1
