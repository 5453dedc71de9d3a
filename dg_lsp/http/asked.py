"""What a client asks for, whatever dialect it speaks, and what of the engine's answer it gets."""

from dataclasses import dataclass
from urllib.parse import quote

from dg_lsp.context.document import Snapshot
from dg_lsp.context.snippets import Snippet
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.engine.result import FillResult
from dg_lsp.http.fields import Fields

MAX_CANDIDATES = 8
MAX_TOKENS = 4096
"""More than that nobody waits for; what the model's context holds is the engine's matter."""
MAX_SECONDS = 600
DEFAULT_LANGUAGE = "python"
"""Of requests that do not say: the one language that is checked. What is no Python is not held to its grammar."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A gap between two texts."""

    prefix: str
    suffix: str
    language: str = DEFAULT_LANGUAGE
    """LSP language id."""
    path: str = ""
    """Of the file, as the client tells it: shown to models that like to know, and never opened."""
    client: str = ""
    """Who asks, where that can be told: a newer request of the same client and path takes this one's place."""
    num_candidates: int = 1
    max_tokens: int | None = None
    """None takes the setting."""
    deadline_ms: float | None = None
    """From its arrival on; None takes the setting."""
    seed: int = 0
    priority: Priority | None = None
    """None takes one candidate for what was typed, several for what was asked for."""
    stops: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    min_indent: int = 0
    """Blanks that lines after the first must begin with; one with fewer ends the answer."""
    chunks: tuple[Snippet, ...] = ()
    """Code from elsewhere under the paths that the client says, the most important first."""

    @property
    def who(self) -> tuple[str, str]:
        """Of two requests by the same client for the same file the newer one wins; a client may be anybody: ''."""
        return self.client, self.path

    def request(self) -> FillRequest:
        """As the engine takes it."""
        usual = Priority.INVOKED if self.num_candidates > 1 else Priority.TYPED
        return FillRequest(
            Snapshot(f"http:{quote(self.path, errors='replace')}", 0, self.prefix + self.suffix, self.language),
            len(self.prefix),
            num_candidates=self.num_candidates,
            max_tokens=self.max_tokens,
            deadline_ms=self.deadline_ms,
            seed=self.seed,
            priority=self.priority if self.priority is not None else usual,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One candidate as the client gets it."""

    text: str
    stopping_word: str = ""
    """The stop that ended it, if one did."""
    is_full: bool = False
    """It has all the tokens that it may have; more might have come."""

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`, in OpenAI's words."""
        return "length" if self.is_full and not self.stopping_word else "stop"


def choices_of(asked: Asked, result: FillResult) -> tuple[Choice, ...]:
    """The candidates, best first, at least one: an empty one where nothing was worth showing."""
    is_full = asked.max_tokens is not None and result.output_tokens >= asked.max_tokens
    texts = [candidate.text for candidate in result.candidates] or [""]
    return tuple(cut_at_stops(_within_margin(text, asked.min_indent), asked.stops, is_full=is_full) for text in texts)


def seed_of(fields: Fields) -> int:
    """The seed; clients say a negative one when they do not care.

    Raises:
        Refusal: it is no whole number.
    """
    return max(0, fields.integer("seed", 0, least=-(2**63), most=2**63))


def deadline_of(fields: Fields) -> float | None:
    """Milliseconds from arrival, where a client sets itself a deadline; llama.cpp's clients send 0 and -1 for none.

    Raises:
        Refusal: it is no number.
    """
    ms = fields.number("t_max_predict_ms", 0)
    return min(ms, 1e3 * MAX_SECONDS) if ms > 0 else None


def cut_at_stops(text: str, stops: tuple[str, ...], *, is_full: bool) -> Choice:
    """`text` up to the first stop in it."""
    found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not found:
        return Choice(text, is_full=is_full)
    at, stop = min(found)
    return Choice(text[:at], stop, is_full=is_full)


def _within_margin(text: str, min_indent: int) -> str:
    """`text` up to the first of its later lines that begins left of the margin; blank lines are nowhere."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < min_indent:
            return "".join(lines[:number]).rstrip("\r\n")
    return text
