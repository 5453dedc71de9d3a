"""Follows each inline completion: whether it was shown, accepted, and right 30 seconds later.

Holds positions and items of open documents only, and no timer: the session requests settlement when it is due.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from lsprotocol import types

from dg_lsp.engine.ttfue import FOLLOW_SECONDS, AcceptedPart, Outcome, Verdict, is_line_finished, judge
from dg_lsp.server.documents import Change, DocumentStore

ACCEPTED = "dg-lsp.accepted"
"""Command that the editor runs when an item is accepted; its argument is the item's name."""
MAX_FOLLOWED = 256
"""Requests that are followed at the same time; the oldest is settled early."""
MAX_OFFERED = 256
"""Items that may still be accepted. Editors show one at a time."""
MIN_INSERTED = 3
"""A change with at least as many characters, blanks excluded, counts as an acceptance; a smaller one as typing."""
_MAX_REFERENCE = 1000
"""Characters that are read beyond the length of an item."""
_WORD = re.compile(r"\w+")


@dataclass(slots=True, eq=False)
class Followed:
    """One request, and the range of the document in which its items would stand."""

    uri: str
    start: int
    end: int
    is_invoked: bool
    arrival: float
    time: str
    id: str = field(default_factory=lambda: uuid4().hex)
    model: str = ""
    items: Sequence[str] = ()
    answer_ms: float | None = None
    due: float | None = None  # 30 seconds after the first change of the document after the answer, or an acceptance
    is_rest: bool = False
    accepted: AcceptedPart = AcceptedPart.NONE
    item: str = ""  # the accepted item
    num_accepted: int = 0
    num_matched: int = 0  # characters of an item that stand in the buffer
    has_left: bool = False  # the buffer differs from all items, or has all of one

    def move(self, change: Change) -> bool:
        """Adapts the range to a change of the document; True if the change is inside the range or at its ends."""
        growth = len(change.text) - (change.end - change.start)
        is_before = change.end < self.start or (change.end == self.start and change.start < self.start)
        if is_before:
            self.start += growth
            self.end += growth
        is_outside = is_before or change.start > self.end
        if not is_outside:
            self.start = min(self.start, change.start)
            self.end = max(self.end, change.end) + growth
        return not is_outside

    def compare(self, text: str, moment: float, *, is_inserted: bool) -> None:
        """Updates what was accepted by the text in the range of the request."""
        text = _plain(text)
        item = next((item for item in map(_plain, self.items) if item.startswith(text) or text.startswith(item)), None)
        if item is None:
            self.has_left = True
            return
        num = min(len(text), len(item))
        has_grown = num > self.num_matched
        self.num_matched = num
        if num == len(item):
            self.has_left = True
            self.accept(AcceptedPart.WHOLE if is_inserted else AcceptedPart.TYPED, item, num, moment)
        elif is_inserted and has_grown:
            self.accept(_part(item, num), item, num, moment)

    def accept(self, part: AcceptedPart, item: str, num: int, moment: float) -> None:
        """The first `num` characters of the item are in the buffer now, so the 30 seconds begin again."""
        if num >= self.num_accepted:
            self.accepted = part
            self.item = item
            self.num_accepted = num
        self.due = moment + FOLLOW_SECONDS

    def outcome(self, reference: str) -> Outcome:
        """The record of the request. `reference` is the text that is in its range now."""
        accepted_words = _WORD.findall(_plain(self.item)[: self.num_accepted])
        is_word_kept = not set(accepted_words).isdisjoint(_WORD.findall(reference))
        return Outcome(
            time=self.time,
            request=self.id,
            model=self.model,
            trigger="invoked" if self.is_invoked else "typed",
            verdict=judge(self.items, reference, is_word_kept=is_word_kept).value,
            num_items=len(self.items),
            answer_ms=self.answer_ms,
            accepted=self.accepted.value,
            is_rest=self.is_rest,
            is_line_finished=is_line_finished(reference),
        )


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
        self._offered: OrderedDict[str, tuple[Followed | None, str, set[str]]] = OrderedDict()
        """Request, text and events of every remembered item by its name."""

    def request(self, uri: str, start: int, end: int, *, is_invoked: bool) -> Followed:
        """Follows a request from its arrival on. Its items replace `[start, end)` of the document."""
        time_of_day = datetime.now(UTC).isoformat(timespec="milliseconds")
        followed = Followed(uri, start, end, is_invoked, self._clock(), time_of_day)
        self._followed[followed.id] = followed
        if len(self._followed) > MAX_FOLLOWED:
            answered = (request for request in self._followed.values() if request.answer_ms is not None)
            self._settle(next(answered, followed))
        return followed

    def is_rest_of_invoked(self, uri: str, offset: int) -> bool:
        """Whether the text before the offset is the beginning of a completion that the user requested."""
        document = self._documents.get(uri)
        if document is None:
            return False
        text = document.lines.text
        return any(
            item.startswith(text[request.start : offset]) and len(item) > offset - request.start
            for request in self._of(uri)
            if request.is_invoked and request.start <= offset <= request.end
            for item in request.items
        )

    def answer(self, followed: Followed, items: Sequence[str], model: str) -> list[str]:
        """Registers the items that are about to be sent to the client; returns their names."""
        if self._documents.get(followed.uri) is None:
            self.drop(followed, Verdict.CANCELLED)
            return [self.offer() for _ in items]
        followed.answer_ms = 1e3 * (self._clock() - followed.arrival)
        followed.items, followed.model = items, model
        older_requests = [request for request in self._of(followed.uri) if request is not followed]
        followed.is_rest = any(self._has_rest(older, followed) for older in older_requests)
        return [self.offer(item, followed) for item in items]

    def drop(self, followed: Followed, verdict: Verdict) -> None:
        """The request ended without an answer."""
        if self._followed.pop(followed.id, None) is not None:
            trigger = "invoked" if followed.is_invoked else "typed"
            record = Outcome(time=followed.time, request=followed.id, model="", trigger=trigger, verdict=verdict.value)
            self._on_outcome(record)

    def offer(self, item: str = "", followed: Followed | None = None) -> str:
        """Registers an item that is sent to the client; returns its name."""
        name = uuid4().hex
        self._offered[name] = (followed, item, set())
        if len(self._offered) > MAX_OFFERED:
            self._offered.popitem(last=False)
        return name

    def record_shown(self, name: str) -> None:
        """The client displayed the item of this name; an unknown name is ignored."""
        self._count(name, "shown")

    def record_accepted(self, name: str, length: int | None = None) -> None:
        """The user accepted `length` UTF-16 units of the item of this name, or all; an unknown name is ignored."""
        followed, item = self._count(name, "accepted")
        if followed is not None:
            text = item.encode("utf-16-le")
            start = item if length is None else text[: 2 * length].decode("utf-16-le", "ignore")
            num = len(_plain(start))
            followed.accept(_part(_plain(item), num), item, num, self._clock())

    def _count(self, name: str, event: str) -> tuple[Followed | None, str]:
        """Counts an event of an item once; returns its request, if that is still followed, and its text."""
        followed, item, events = self._offered.get(name, (None, "", {event}))
        if event not in events:
            events.add(event)
            self.counts[event] += 1
        return followed if followed is not None and followed.id in self._followed else None, item

    def change(self, uri: str, changes: Sequence[Change]) -> None:
        """Follows a change of the document. Call `settle` before it, because due requests are judged without it."""
        document, moment = self._documents.get(uri), self._clock()
        if document is None:
            return
        for request in self._of(uri):
            touching = [change for change in changes if request.move(change)]
            if request.answer_ms is None:
                continue
            if request.due is None:
                request.due = moment + FOLLOW_SECONDS
            if touching and request.items and not request.has_left:
                num_inserted = max(len("".join(change.text.split())) for change in touching)
                text = document.lines.text[request.start : request.end]
                request.compare(text, moment, is_inserted=num_inserted >= MIN_INSERTED)

    @property
    def seconds_until_due(self) -> float | None:
        """Time until the next request is due; None if no request waits."""
        due = [request.due for request in self._followed.values() if request.due is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def settle(self) -> None:
        """Ends the requests whose 30 seconds are over."""
        moment = self._clock()
        for request in [*self._followed.values()]:
            if request.due is not None and request.due <= moment:
                self._settle(request)

    def close(self, uri: str | None = None) -> None:
        """Ends the requests of a document that is about to be closed, or of all; nothing of its text is kept."""
        for request in [*self._followed.values()]:
            if uri in (None, request.uri):
                self._settle(request)
        for name, (followed, _, events) in self._offered.items():
            if followed is not None and followed.id not in self._followed:
                self._offered[name] = (None, "", events)

    def _settle(self, request: Followed) -> None:
        """Ends one request. A request without an answer is ended by `drop`."""
        if request.answer_ms is None:
            return
        del self._followed[request.id]
        document = self._documents.get(request.uri)
        if document is not None:
            longest = max(map(len, request.items), default=0)
            end = min(request.end, request.start + 2 * longest + _MAX_REFERENCE)
            self._on_outcome(request.outcome(_plain(document.lines.text[request.start : end])))

    def _of(self, uri: str) -> list[Followed]:
        return [request for request in self._followed.values() if request.uri == uri]

    def _has_rest(self, older: Followed, newer: Followed) -> bool:
        """Whether an item of the newer request is the rest of an item of the older one."""
        document = self._documents.get(older.uri)
        if document is None or not older.items or not older.start <= newer.start <= older.end:
            return False
        typed = document.lines.text[older.start : newer.start]
        return any(item.startswith(typed) and item[len(typed) :] in newer.items for item in older.items)


def accept_command(title: str, name: str) -> types.Command:
    """The command that the client runs when the user accepts the item of this name."""
    return types.Command(title, ACCEPTED, arguments=[name])


def _part(item: str, num: int) -> AcceptedPart:
    """What the first `num` characters of the item are."""
    if num >= len(item):
        return AcceptedPart.WHOLE
    return AcceptedPart.LINE if "\n" in (item[num - 1], item[num]) else AcceptedPart.WORDS


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")
