"""Three ways to ask and to read: bodies of requests, and pieces of text in what comes back. Pure; knows no socket."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dg_lsp.backends.remote.fenced import after_line, code_in
from dg_lsp.backends.remote.questions import fill_question, rewrite_question
from dg_lsp.context.asking import Asking, Said, Task

Tree = dict[str, Any]
SPREAD = 0.8
"""Temperature of several answers, at least: at 0 they would all be the same."""
_FENCE_TOKENS = 64
"""What a chat says around its code."""

SENTINELS = {
    "qwen": "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
    "codegemma": "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
    "starcoder": "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
    "deepseek": "<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",
    "codestral": "[SUFFIX]{suffix}[PREFIX]{prefix}",
}
STOPS = {
    "qwen": ["<|file_sep|>", "<|fim_pad|>", "<|repo_name|>", "<|endoftext|>"],
    "codegemma": ["<|file_separator|>"],
    "starcoder": ["<file_sep>", "<|endoftext|>"],
}
"""What some families say at the end of a file, and servers pass on as text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some more text of one answer."""

    index: int
    text: str
    is_ended: bool = False
    """The model ended it."""
    is_full: bool = False
    """It has all tokens that it may have."""


class Dialect(Protocol):
    """One way. `read` raises KeyError, TypeError, AttributeError or ValueError for what is none of it."""

    @property
    def path(self) -> str:
        """Below the server's address."""
        ...

    @property
    def follows_instructions(self) -> bool:
        """Whether it can be told what to do in words."""
        ...

    def body(self, asking: Asking, temperature: float, deadline_ms: float) -> Tree:
        """The request's own fields."""
        ...

    def read(self, tree: Any) -> Iterator[Piece]:
        """The pieces in one event of a stream, or in a whole answer."""
        ...

    def shown(self, said: Said, asking: Asking) -> Said:
        """What of the texts is the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Completions:
    """`/v1/completions` of OpenAI, vLLM, SGLang, llama-server and `dg-lsp serve`."""

    fim: str
    """`suffix`, `none` or a family of `SENTINELS`."""
    path: str = "/v1/completions"
    follows_instructions: bool = False

    def body(self, asking: Asking, temperature: float, deadline_ms: float) -> Tree:  # noqa: ARG002
        """See `Dialect.body`."""
        prompt = asking.prompt
        tree: Tree = {"prompt": prompt.prefix, **_common(asking, temperature)}
        if self.fim == "suffix":
            tree["suffix"] = prompt.suffix
        elif self.fim in SENTINELS:
            form = SENTINELS[self.fim]
            parts = {"prefix": prompt.prefix, "suffix": prompt.suffix}
            tree["prompt"] = "".join(_filled(form, parts))
            if stops := STOPS.get(self.fim):
                tree["stop"] = stops
        return tree

    def read(self, tree: Any) -> Iterator[Piece]:
        """See `Dialect.read`."""
        for choice in tree["choices"]:
            yield _piece(choice, choice["text"])

    def shown(self, said: Said, asking: Asking) -> Said:  # noqa: ARG002
        """See `Dialect.shown`."""
        return said


@dataclass(frozen=True, slots=True)
class Infill:
    """`/infill` of llama-server and `dg-lsp serve`."""

    path: str = "/infill"
    follows_instructions: bool = False

    def body(self, asking: Asking, temperature: float, deadline_ms: float) -> Tree:
        """See `Dialect.body`."""
        prompt = asking.prompt
        cut = prompt.prefix.rfind("\n") + 1
        extra = [{"text": chunk.text, "filename": chunk.path} for chunk in prompt.extra.chunks]
        tree: Tree = {
            "input_prefix": prompt.prefix[:cut],
            "prompt": prompt.prefix[cut:],
            "input_suffix": prompt.suffix,
            "input_extra": extra,
            "n_predict": asking.max_tokens,
            "temperature": temperature,
            "seed": asking.seed,
            "stream": True,
            "cache_prompt": True,
            "t_max_predict_ms": max(1, int(deadline_ms)),
        }
        return {**tree, "n_cmpl": asking.num_answers} if asking.num_answers > 1 else tree

    def read(self, tree: Any) -> Iterator[Piece]:
        """See `Dialect.read`."""
        for one in tree if isinstance(tree, list) else [tree]:
            is_over = one.get("stop", True) is True
            is_full = one.get("stop_type") == "limit"
            yield Piece(_index(one), _text(one["content"]), is_over and not is_full, is_over and is_full)

    def shown(self, said: Said, asking: Asking) -> Said:  # noqa: ARG002
        """See `Dialect.shown`."""
        return said


@dataclass(frozen=True, slots=True)
class Chat:
    """`/v1/chat/completions`, of a model that follows instructions."""

    path: str = "/v1/chat/completions"
    follows_instructions: bool = True

    def body(self, asking: Asking, temperature: float, deadline_ms: float) -> Tree:  # noqa: ARG002
        """See `Dialect.body`."""
        turns = asking.turns
        if asking.task is Task.FILL:
            turns = (("user", fill_question(asking.prompt)),)
        elif asking.task is Task.REWRITE:
            turns = (("user", rewrite_question(asking.prompt)),)
        more = 0 if asking.task is Task.CHAT else _FENCE_TOKENS
        messages = [{"role": role, "content": text} for role, text in turns]
        tree = _common(replace(asking, max_tokens=asking.max_tokens + more), temperature)
        return {"messages": messages, **tree}

    def read(self, tree: Any) -> Iterator[Piece]:
        """See `Dialect.read`."""
        for choice in tree["choices"]:
            said = choice["delta"] if "delta" in choice else choice["message"]
            yield _piece(choice, said.get("content") or "")

    def shown(self, said: Said, asking: Asking) -> Said:
        """See `Dialect.shown`."""
        if asking.task is Task.CHAT:
            return said
        found = [code_in(text) for text in said.texts]
        texts = tuple(code for code, _ in found)
        if asking.task is Task.FILL:
            line = asking.prompt.prefix[asking.prompt.prefix.rfind("\n") + 1 :]
            texts = tuple(after_line(code, line) for code in texts)
        is_closed = len(found) == asking.num_answers and all(is_closed for _, is_closed in found)
        return replace(said, texts=texts, is_ended=said.is_ended or is_closed)


def dialect_of(api: str, fim: str) -> Dialect:
    """By the names that the settings use."""
    if api == "infill":
        return Infill()
    return Chat() if api == "chat" else Completions(fim)


def costs_of(tree: Tree) -> dict[str, int]:
    """Numbers that some servers tell beside the text; those of other types are passed over."""
    usage, timings, diffusion = (_object(tree.get(name)) for name in ("usage", "timings", "diffusion"))
    details = _object(usage.get("prompt_tokens_details"))
    cached = _count(timings.get("cache_n")) or _count(details.get("cached_tokens"))
    found = {
        "prompt_tokens": _count(usage.get("prompt_tokens")) or _count(timings.get("prompt_n")) + cached,
        "cached_tokens": cached,
        "output_tokens": _count(usage.get("completion_tokens")) or _count(timings.get("predicted_n")),
        "steps": _count(diffusion.get("steps")),
        "canvas_length": _count(diffusion.get("canvas_length")),
    }
    return {name: number for name, number in found.items() if number}


def _common(asking: Asking, temperature: float) -> Tree:
    tree: Tree = {
        "max_tokens": asking.max_tokens,
        "temperature": temperature,
        "seed": asking.seed,
        "stream": True,
    }
    return {**tree, "n": asking.num_answers} if asking.num_answers > 1 else tree


def _piece(choice: Tree, text: Any) -> Piece:
    reason = choice.get("finish_reason")
    return Piece(_index(choice), _text(text), bool(reason) and reason != "length", reason == "length")


def _filled(form: str, parts: dict[str, str]) -> Iterator[str]:
    """The form with the parts in their places; braces in the parts stay what they are."""
    for piece in form.replace("{", "\0").replace("}", "\0").split("\0"):
        yield parts.get(piece, piece)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _index(one: Tree) -> int:
    index = one.get("index", 0)
    if type(index) is not int or not 0 <= index < 64:
        raise ValueError("no index")
    return index


def _object(value: Any) -> Tree:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
