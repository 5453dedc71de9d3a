"""One passage typed from its first key to its last, beside an editor that asks and a reader who accepts.

A key press changes the buffer, cancels the request that is under way, and starts the editor's debounce; an acceptance
does so too, but the request after it goes out at once. A shown item stays while what is typed is its beginning. The
reader looks at it for the reaction time while typing goes on, and then takes what of it is right. However many presses
that needs, it takes no further time. Not modelled: typing mistakes, closing brackets that an editor types by itself,
and readers who wait for the model or are held up by what they read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from dg_lsp.bench.replay.accept import taking
from dg_lsp.bench.replay.asking import Asker, Question
from dg_lsp.bench.replay.editor import Editor, TypeThrough
from dg_lsp.bench.replay.events import Accepted, Asked, Event, Typed
from dg_lsp.bench.replay.keys import Typist, keys_of
from dg_lsp.bench.replay.passage import Passage
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import LINE_END, Snapshot
from dg_lsp.engine.request import FillRequest


@dataclass(frozen=True, slots=True)
class _Item:
    site: str
    text: str
    """What is left of it after the cursor."""
    readable_ms: float
    """From here on it can be accepted."""
    is_visible: bool = True


class Session:
    """Everything that happens while a passage is typed. Lives for one run."""

    def __init__(
        self,
        passage: Passage,
        typist: Typist,
        editor: Editor,
        asker: Asker,
        *,
        seed: int = 0,
        decoder: DecoderName | None = None,
    ) -> None:
        self._passage = passage
        self._editor = editor
        self._asker = asker
        self._reaction_ms = typist.reaction_ms
        self._keys = keys_of(passage.text)
        self._delays = typist.delays(self._keys, seed)
        self._starts = (0, *accumulate(map(len, self._keys)))
        self._key_at = {start: number for number, start in enumerate(self._starts)}
        self._seed = seed
        self._decoder = decoder

    @property
    def num_keys(self) -> int:
        """That the passage takes by hand."""
        return len(self._keys)

    def run(self) -> Iterator[Event]:
        """Events in the order of the virtual clock; whoever stops asking has stopped the typist."""
        now, done, wait = 0.0, 0, self._editor.debounce_ms
        item: _Item | None = None
        while done < len(self._keys):
            key_ms = now + self._delays[done]
            if self._wants(item):
                stale_ms = min(key_ms, self._accept_ms(item, done))
                if now + wait < stale_ms:
                    asked = self._ask(done, now + wait, stale_ms, item)
                    yield asked
                    item = self._on_screen(item, asked, now + wait)
            accepted = self._accepted(item, done) if item else None
            if accepted and accepted.at_ms <= key_ms:
                yield accepted
                now, done, wait, item = accepted.at_ms, done + accepted.num_keys, 0.0, None
            else:
                yield Typed(self._keys[done], key_ms, self._finished(item, self._keys[done]))
                item = self._typed_through(item, self._keys[done])
                now, done, wait = key_ms, done + 1, self._editor.debounce_ms

    def _wants(self, item: _Item | None) -> bool:
        return item is None or self._editor.type_through is not TypeThrough.KEEP

    def _ask(self, done: int, at_ms: float, stale_ms: float, item: _Item | None) -> Asked:
        passage, start = self._passage, self._starts[done]
        text = passage.head + passage.text[:start]
        lines = LINE_END.split(text)
        coming = passage.text[start:]
        question = Question(
            site=f"{passage.path}:{len(lines)}:{len(lines[-1]) + 1}",
            kind="line-end" if lines[-1].strip() else "whole-line",
            request=FillRequest(
                Snapshot(passage.path, done, text + passage.tail, passage.language),
                len(text),
                decoder=self._decoder,
                seed=self._seed,
            ),
            coming=coming,
            at_ms=at_ms,
            stale_ms=stale_ms,
        )
        attempt = self._asker.ask(question)
        is_shown = bool(attempt.shown)
        return Asked(
            attempt,
            is_displayed=is_shown and not (item and item.is_visible),
            is_line_finished=not LINE_END.split(coming, maxsplit=1)[0].strip(),
            takes_back=_head(attempt.text) != _head(item.text) if item and is_shown else None,
        )

    def _on_screen(self, item: _Item | None, asked: Asked, asked_ms: float) -> _Item | None:
        if not asked.is_displayed:
            return item
        attempt = asked.attempt
        return _Item(attempt.site, attempt.text, asked_ms + attempt.latency_ms + self._reaction_ms)

    def _accept_ms(self, item: _Item | None, done: int) -> float:
        """When the item will be accepted unless it goes before."""
        return item.readable_ms if item and self._accepted(item, done) else math.inf

    def _accepted(self, item: _Item, done: int) -> Accepted | None:
        """What is taken of a visible item: what is right of it, where that spares a key press."""
        start = self._starts[done]
        taken = taking(item.text, self._passage.text[start:]) if item.is_visible else None
        num_keys = self._key_at.get(start + len(taken.text), done) - done if taken else 0
        if taken is None or num_keys <= taken.presses:
            return None
        return Accepted(item.site, taken.text, taken.level, taken.presses, num_keys, item.readable_ms)

    def _finished(self, item: _Item | None, key: str) -> str | None:
        return item.site if item and item.text == key else None

    def _typed_through(self, item: _Item | None, key: str) -> _Item | None:
        """What is left of the item after a key, or None when the key is not its beginning."""
        if item is None or not item.text.startswith(key) or item.text == key:
            return None
        stays = self._editor.type_through is not TypeThrough.DISMISS
        return replace(item, text=item.text[len(key) :], is_visible=item.is_visible and stays)


def _head(text: str) -> str:
    return LINE_END.split(text, maxsplit=1)[0].rstrip()
