"""Passages typed one after the other."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dg_lsp.bench.replay.asking import Asker
from dg_lsp.bench.replay.editor import Editor
from dg_lsp.bench.replay.events import Asked, Event
from dg_lsp.bench.replay.keys import Typist, keys_of
from dg_lsp.bench.replay.passage import Passage
from dg_lsp.bench.replay.session import Session
from dg_lsp.canvas.spec import DecoderName


class Buffer(StrEnum):
    """What stands around the text that is typed."""

    ONWARDS = "onwards"
    """What comes before it in the file, and nothing after it."""
    REGION = "region"
    """The rest of the file, before and after it."""
    BODIES = "bodies"
    """The rest of the file; one function's body after the other is typed."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What is typed, by whom and into what."""

    passages: Sequence[Passage]
    typist: Typist
    editor: Editor
    seed: int = 0
    limit: int | None = None
    """Requests for each file."""
    decoder: DecoderName | None = None
    """How requests are decoded; None takes the setting."""

    @property
    def num_keys(self) -> int:
        """Of all passages, by hand."""
        return sum(len(keys_of(passage.text)) for passage in self.passages)

    def run(self, asker: Asker) -> Iterator[Event]:
        """Everything that happens; whoever stops asking has stopped it."""
        asked: Counter[str] = Counter()
        for passage in self.passages:
            if self.limit is not None and asked[passage.path] >= self.limit:
                continue
            asker.begin()
            session = Session(passage, self.typist, self.editor, asker, seed=self.seed, decoder=self.decoder)
            for event in session.run():
                yield event
                asked[passage.path] += isinstance(event, Asked)
                if asked[passage.path] == self.limit:
                    break
