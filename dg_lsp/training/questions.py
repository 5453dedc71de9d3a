"""Single-line infilling sites in held-out packages. Knows text and characters, no model."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.middles import WORD_START

MIN_CHARS, MAX_CHARS = 8, 80  # of a line without its indentation
MAX_TOKENS = 30
FIRST_LINE = 3  # nothing can be known of a file's first lines


@dataclass(frozen=True, slots=True)
class Question:
    """text[start:end] is what was taken out: always to the end of a line."""

    kind: str
    package: str
    text: str
    start: int
    end: int

    @property
    def want(self) -> str:
        """The right answer."""
        return self.text[self.start : self.end]


def held_out_questions(
    files: Sequence[SourceFile], num: int, encode: Callable[[str], Sequence[int]], seed: int = 1
) -> list[Question]:
    """Half from a word start to the end of the line, half whole lines after their indentation; no comments."""
    rng = random.Random(seed)
    sizes = [len(file.text) for file in files]
    found: list[Question] = []
    while len(found) < num:
        file = rng.choices(files, sizes)[0]
        question = _question(file, "whole line" if len(found) % 2 else "line end", rng)
        if question and len(encode(question.want)) <= MAX_TOKENS:
            found.append(question)
    return found


def _question(file: SourceFile, kind: str, rng: random.Random) -> Question | None:
    lines = file.text.split("\n")
    number = rng.randrange(FIRST_LINE, len(lines))
    body = lines[number].lstrip()
    if not MIN_CHARS <= len(body) <= MAX_CHARS or body.startswith(("#", '"""')):
        return None
    start = sum(len(line) + 1 for line in lines[:number])
    end = start + len(lines[number])
    start = end - len(body)
    if kind == "line end":
        cuts = [match.start() for match in WORD_START.finditer(body) if 0 < match.start() < len(body)]
        if not cuts:
            return None
        start += rng.choice(cuts)
    return Question(kind, file.package, file.text, start, end)
