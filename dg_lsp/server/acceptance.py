"""Follows each inline completion: whether it was shown, accepted, and right 30 seconds later.

Holds positions and items of open documents only, and no timer: what is due is judged at the next event of the session.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from lsprotocol import types

from dg_lsp.engine.ttfue import FOLLOW_SECONDS, AcceptedPart, Outcome, Verdict, is_line_finished, judge
from dg_lsp.postprocess.text_edits import Change
from dg_lsp.server.documents import DocumentStore

ACCEPTED = "dg-lsp.accepted"
"""Command that the editor runs when an item is accepted; its argument is the item's name."""
MAX_FOLLOWED = 256
"""Requests that are followed at the same time; the oldest is settled early."""
MAX_OFFERED = 256
"""Items that may still be accepted. Editors show one at a time."""
MIN_INSERTED = 3
"""A change with fewer characters, blanks excluded, is typed by hand."""
_MAX_REFERENCE = 1000
"""Characters that are read beyond twice the length of the longest item."""
_WORD = re.compile(r"\w+")
_INVOKED = "invoked"  # trigger of a request by the user


@dataclass(slots=True, eq=False)
class Followed:
    """One request, and the range of the document in which its items would stand."""

    uri: str
    start: int
    end: int
    arrival: float
    record: Outcome  # as far as it is known
    items: Sequence[str] = ()
    due: float | None = None  # 30 seconds after the first change of the document after the answer, or an acceptance
    accepted_text: str = ""

    @property
    def id(self) -> str:
        """That of the request's audit record."""
        return self.record.request

    @property
    def is_answered(self) -> bool:
        """Its items were sent to the client."""
        return self.record.answer_ms is not None

    def move(self, change: Change) -> None:
        """Adapts the range to a change of the document."""
        growth = len(change.text) - (change.end - change.start)
        if change.end < self.start or (change.end == self.start and change.start < self.start):
            self.start += growth
            self.end += growth
        elif change.start <= self.end:
            self.start = min(self.start, change.start)
            self.end = max(self.end, change.end) + growth

    def accept(self, item: str, text: str) -> None:
        """The user accepted the text with which the item begins."""
        if len(text) < len(self.accepted_text):
            return
        self.accepted_text = text
        is_line = text.endswith("\n") or item.startswith("\n", len(text))
        part = AcceptedPart.WHOLE if text == item else AcceptedPart.LINE if is_line else AcceptedPart.WORDS
        self.record = replace(self.record, accepted=part.value)

    def rests(self, text: str, offset: int) -> list[str]:
        """What is left of the items if the user has typed them up to an offset in the text of the document."""
        if not self.start <= offset <= self.end:
            return []
        typed = text[self.start : offset]
        return [item.removeprefix(typed) for item in self.items if item.startswith(typed)]

    def is_offered(self, change: Change, text: str) -> bool:
        """Whether a change inserts the rest of an item, or several characters of it; `text` is the text after it."""
        is_by_hand = len("".join(change.text.split())) < MIN_INSERTED
        return not is_by_hand and any(rest.startswith(change.text) for rest in self.rests(text, change.start))

    def outcome(self, reference: str) -> Outcome:
        """The record of the request. `reference` is the text that is in its range now."""
        accepted_words = _WORD.findall(self.accepted_text)
        is_word_kept = not set(accepted_words).isdisjoint(_WORD.findall(reference))
        verdict = judge(self.items, reference, is_word_kept=is_word_kept)
        return replace(self.record, verdict=verdict.value, is_line_finished=is_line_finished(reference))


class Acceptance:
    """The followed requests of a session, and counts of the events that the client reports."""

    def __init__(
        self,
        documents: DocumentStore,
        on_outcome: Callable[[Outcome], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns seconds."""
        self.counts = {"shown": 0, "accepted": 0}
        self._documents = documents
        self._on_outcome = on_outcome
        self._clock = clock
        self._followed: OrderedDict[str, Followed] = OrderedDict()
        self._offered: OrderedDict[str, tuple[Followed | None, int, set[str]]] = OrderedDict()
        """Request, number and events of every remembered item by its name."""

    def request(self, uri: str, start: int, end: int, *, is_invoked: bool) -> Followed:
        """Follows a request from its arrival on. Its items replace `[start, end)` of the document."""
        record = Outcome(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            request=uuid4().hex,
            model="",
            trigger=_INVOKED if is_invoked else "typed",
            verdict=Verdict.CANCELLED.value,
        )
        followed = Followed(uri, start, end, self._clock(), record)
        self._followed[followed.id] = followed
        if len(self._followed) > MAX_FOLLOWED:
            answered = (request for request in self._followed.values() if request.is_answered)
            self._settle(next(answered, followed))
        return followed

    def is_rest_of_invoked(self, uri: str, offset: int) -> bool:
        """Whether the text before the offset is the beginning of a completion that the user requested."""
        document = self._documents.get(uri)
        assert document is not None
        invoked = (request for request in self._of(uri) if request.record.trigger == _INVOKED)
        return any(any(request.rests(document.lines.text, offset)) for request in invoked)

    def answer(self, followed: Followed, items: Sequence[str], model: str) -> list[str]:
        """Registers the items that are about to be sent to the client; returns their names."""
        document = self._documents.get(followed.uri)
        if document is None or followed.id not in self._followed:  # its document was closed meanwhile
            self.drop(followed, Verdict.CANCELLED)
            return [self.offer() for _ in items]
        text = document.lines.text
        rests = [rest for older in self._of(followed.uri) for rest in older.rests(text, followed.start)]
        followed.items = items
        followed.record = replace(
            followed.record,
            model=model,
            num_items=len(items),
            answer_ms=1e3 * (self._clock() - followed.arrival),
            is_rest=not set(rests).isdisjoint(items),
        )
        return [self.offer(number, followed) for number in range(len(items))]

    def drop(self, followed: Followed, verdict: Verdict) -> None:
        """The request ended without an answer."""
        if self._followed.pop(followed.id, None) is not None:
            self._on_outcome(replace(followed.record, verdict=verdict.value))

    def offer(self, number: int = 0, followed: Followed | None = None) -> str:
        """Registers an item that is sent to the client, of a request or another one; returns its name."""
        name = uuid4().hex
        self._offered[name] = (followed, number, set())
        if len(self._offered) > MAX_OFFERED:
            self._offered.popitem(last=False)
        return name

    def record_shown(self, name: str) -> None:
        """The client displayed the item of this name; an unknown name is ignored."""
        self._count(name, "shown")

    def record_accepted(self, name: str, length: int | None = None) -> None:
        """The user accepted `length` UTF-16 units of the item of this name, or all; an unknown name is ignored."""
        followed, number = self._count(name, "accepted")
        if followed is not None and followed.id in self._followed:
            item = followed.items[number]
            units = item.encode("utf-16-le")
            text = item if length is None else units[: 2 * length].decode("utf-16-le", "ignore")
            followed.accept(_plain(item), _plain(text))
            followed.due = self._clock() + FOLLOW_SECONDS

    def _count(self, name: str, event: str) -> tuple[Followed | None, int]:
        """Counts an event of an item once; returns its request and its number."""
        followed, number, events = self._offered.get(name, (None, 0, {event}))
        if event not in events:
            events.add(event)
            self.counts[event] += 1
        return followed, number

    def change(self, uri: str, changes: Sequence[Change]) -> bool:
        """Follows a change of the document; returns whether it inserted a part of an item, as an acceptance does.

        Call `settle` before it, because due requests are judged without it.
        """
        document = self._documents.get(uri)
        assert document is not None
        has_inserted = False
        for request in self._of(uri):
            for change in changes:
                has_inserted |= request.is_offered(change, document.lines.text)
                request.move(change)
            if request.is_answered and request.due is None:
                request.due = self._clock() + FOLLOW_SECONDS
        return has_inserted

    def settle(self) -> None:
        """Ends the requests whose 30 seconds are over."""
        moment = self._clock()
        for request in [*self._followed.values()]:
            if request.due is not None and request.due <= moment:
                self._settle(request)

    def close(self, uri: str | None = None) -> None:
        """Ends the requests of a document that is about to be closed, or of all; nothing of its text is kept."""
        for request in [request for request in self._followed.values() if uri in (None, request.uri)]:
            self._settle(request)
            self.drop(request, Verdict.CANCELLED)  # one without an answer

    def _settle(self, request: Followed) -> None:
        """Ends one request, and forgets its text. A request without an answer is ended by `drop`."""
        if not request.is_answered:
            return
        del self._followed[request.id]
        document = self._documents.get(request.uri)
        if document is not None:
            longest = max(map(len, request.items), default=0)
            end = min(request.end, request.start + 2 * longest + _MAX_REFERENCE)
            self._on_outcome(request.outcome(_plain(document.lines.text[request.start : end])))
        request.items = ()
        request.accepted_text = ""

    def _of(self, uri: str) -> list[Followed]:
        return [request for request in self._followed.values() if request.uri == uri]


def accept_command(title: str, name: str) -> types.Command:
    """The command that the client runs when the user accepts the item of this name."""
    return types.Command(title, ACCEPTED, arguments=[name])


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")
