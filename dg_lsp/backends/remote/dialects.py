"""The APIs of remote servers: what a request contains, and what a response means. Pure: no network, no clock."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from dg_lsp.canvas.chat import REWRITE, SNIPPET_TEMPLATE, SNIPPETS_HEADING, fence_of
from dg_lsp.canvas.fim_families import FIM_FAMILIES
from dg_lsp.context.window import Prompt

Json = dict[str, Any]
MAX_CHOICES = 64
_MAX_STOPS = 4
"""As many as OpenAI's API accepts."""
_FENCE_TOKENS = 64
"""Tokens that a chat model writes around its code."""
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)
_FILL_QUESTION = (
    "A gap in {path} is marked <GAP>. Write the {language} code that belongs there. Answer with one fenced code block"
    " and nothing else. It holds only what stands for <GAP>: nothing that comes before or after it."
    "\n\n{fence}{language}\n{prefix}<GAP>{suffix}\n{fence}"
)


class RemoteTask(StrEnum):
    """What a query is for."""

    FILL = "fill"
    """The text between prefix and suffix."""
    REWRITE = "rewrite"
    """The selection, changed as the instruction says."""
    CHAT = "chat"
    """The answer to the last message."""


@dataclass(frozen=True, slots=True)
class RemoteQuery:
    """One request to a server."""

    task: RemoteTask
    prompt: Prompt
    max_tokens: int
    """Longest answer."""
    num_answers: int = 1
    seed: int = 0
    messages: tuple[tuple[str, str], ...] = ()
    """Of a chat: role (`system`, `user` or `assistant`) and text."""
    session: str = ""
    """Equal for related requests, such as those of one document. Only a hash of it is sent."""


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """The answers received so far. Counts are 0 where the server does not report them."""

    texts: tuple[str, ...] = ()
    is_finished: bool = False
    """The model ended every answer itself."""
    model: str = ""
    """The name that the server gives its model."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """Of all answers."""
    steps: int = 0
    """Forward passes."""
    canvas_length: int = 0


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More text of one answer."""

    index: int
    text: str
    finish: str = ""
    """`stop` where the model ended the answer, `length` where the answer has its maximal length."""


class Dialect:
    """`/v1/completions` of OpenAI, vLLM, SGLang, llama-server and `dg-lsp serve`; the base of the other APIs."""

    path: ClassVar[str] = "/v1/completions"
    """Below the address of the server."""
    follows_instructions: ClassVar[bool] = False

    def __init__(self, fim: str = "suffix") -> None:
        """`fim` is `suffix`, `none` or a family of `FIM_FAMILIES`."""
        self._fim = fim

    def body(self, query: RemoteQuery, temperature: float, deadline_ms: float) -> Json:  # noqa: ARG002
        """The fields of the request."""
        prompt = query.prompt
        tree = {"prompt": prompt.prefix, **_sampling(query, query.max_tokens, temperature)}
        if self._fim == "suffix":
            tree["suffix"] = prompt.suffix
        elif family := FIM_FAMILIES.get(self._fim):
            tree["prompt"] = family.text(prompt.prefix, prompt.suffix)
            if family.end:  # some servers return these tokens as text
                tree["stop"] = list(family.end[:_MAX_STOPS])
        return tree

    def pieces(self, tree: Any) -> Iterator[TextPiece]:
        """The pieces in one event of a stream, or in a whole response.

        Raises:
            KeyError, TypeError, AttributeError, ValueError: the response has another shape.
        """
        for choice in tree["choices"]:
            yield _piece(choice, choice["text"])

    def extract(self, answer: RemoteAnswer, query: RemoteQuery) -> RemoteAnswer:  # noqa: ARG002
        """The part of the texts that answers the query."""
        return answer


class InfillDialect(Dialect):
    """`/infill` of llama-server and `dg-lsp serve`."""

    path: ClassVar[str] = "/infill"

    def body(self, query: RemoteQuery, temperature: float, deadline_ms: float) -> Json:
        """See `Dialect.body`."""
        prompt = query.prompt
        line_start = prompt.prefix.rfind("\n") + 1
        tree: Json = {
            "input_prefix": prompt.prefix[:line_start],
            "prompt": prompt.prefix[line_start:],
            "input_suffix": prompt.suffix,
            "input_extra": [{"text": chunk.text, "filename": chunk.path} for chunk in prompt.snippets.chunks],
            "n_predict": query.max_tokens,
            "temperature": temperature,
            "seed": query.seed,
            "stream": True,
            "cache_prompt": True,
            "t_max_predict_ms": max(1, int(deadline_ms)),
        }
        return {**tree, "n_cmpl": query.num_answers} if query.num_answers > 1 else tree

    def pieces(self, tree: Any) -> Iterator[TextPiece]:
        """See `Dialect.pieces`."""
        for choice in tree if isinstance(tree, list) else [tree]:
            finish = "length" if choice.get("stop_type") == "limit" else "stop"
            is_last = choice.get("stop", True) is True
            yield TextPiece(_index(choice), _text(choice["content"]), finish if is_last else "")


class ChatDialect(Dialect):
    """`/v1/chat/completions` of a model that follows instructions."""

    path: ClassVar[str] = "/v1/chat/completions"
    follows_instructions: ClassVar[bool] = True

    def body(self, query: RemoteQuery, temperature: float, deadline_ms: float) -> Json:  # noqa: ARG002
        """See `Dialect.body`."""
        if query.task is RemoteTask.CHAT:
            messages, max_tokens = query.messages, query.max_tokens
        else:
            question = fill_question if query.task is RemoteTask.FILL else rewrite_question
            messages, max_tokens = (("user", question(query.prompt)),), query.max_tokens + _FENCE_TOKENS
        tree = {"messages": [{"role": role, "content": text} for role, text in messages]}
        return {**tree, **_sampling(query, max_tokens, temperature)}

    def pieces(self, tree: Any) -> Iterator[TextPiece]:
        """See `Dialect.pieces`."""
        for choice in tree["choices"]:
            message = choice["delta"] if "delta" in choice else choice["message"]
            yield _piece(choice, message.get("content") or "")

    def extract(self, answer: RemoteAnswer, query: RemoteQuery) -> RemoteAnswer:
        """The fenced code of a fill or a rewrite."""
        if query.task is RemoteTask.CHAT:
            return answer
        found = [fenced_code(text) for text in answer.texts]
        line = query.prompt.prefix.rpartition("\n")[2] if query.task is RemoteTask.FILL else ""
        codes = tuple(without_line_start(code, line) for code, _ in found)
        is_closed = len(found) == query.num_answers and all(is_closed for _, is_closed in found)
        return replace(answer, texts=codes, is_finished=answer.is_finished or is_closed)


def dialect_of(api: str, fim: str) -> Dialect:
    """The dialect of the settings `remote.api` and `remote.fim`."""
    return {"infill": InfillDialect, "chat": ChatDialect}.get(api, Dialect)(fim)


def fill_question(prompt: Prompt) -> str:
    """The file with a gap marked, after the extra code."""
    fence, language = fence_of(prompt), prompt.language
    chunks = [
        SNIPPET_TEMPLATE.format(path=chunk.path, fence=fence, language=language, text=chunk.text.strip("\n") + "\n")
        for chunk in prompt.snippets.chunks
    ]
    extra = SNIPPETS_HEADING + "".join(chunks) if chunks else ""
    return extra + _FILL_QUESTION.format(prefix=prompt.prefix, suffix=prompt.suffix, **_words(prompt))


def rewrite_question(prompt: Prompt) -> str:
    """The question that local models get."""
    words = {"instruction": prompt.instruction, **_words(prompt)}
    selection = prompt.selection.removesuffix("\n") + "\n"
    code = prompt.prefix + REWRITE.opening + selection + REWRITE.closing + prompt.suffix
    return REWRITE.before.format(**words) + code + REWRITE.after.format(**words)


def fenced_code(answer: str) -> tuple[str, bool]:
    """The code in the first fence, and whether the fence is closed; an answer without a fence is code itself.

    There is no code as long as the answer may still start with a fence.
    """
    opening = _FENCE.search(answer)
    if opening is None:
        return ("", False) if answer.lstrip()[:1] in ("", "`", "~") else (answer, False)
    rest = answer[opening.end() :]
    closing = re.search(rf"^[ \t]*{re.escape(opening[1])}[ \t]*$", rest, re.MULTILINE)
    return (rest, False) if closing is None else (rest[: closing.start()].removesuffix("\n"), True)


def without_line_start(code: str, line: str) -> str:
    """`code` without the text before the cursor in its first line; chat models often repeat it.

    Empty as long as the code may still repeat it.
    """
    if not line.strip():  # only indentation
        return code.removeprefix(line)
    for start in (line, line.lstrip()):
        if code.startswith(start):
            return code[len(start) :]
    unindented = code.lstrip(" \t")
    if unindented.startswith(line.lstrip()):
        return unindented[len(line.lstrip()) :]
    return "" if line.startswith(code) or line.lstrip().startswith(code) else code


def usage_of(tree: Json) -> dict[str, int]:
    """The counts of `RemoteAnswer` that a response reports; other values than positive integers are ignored."""
    usage, timings, diffusion = (_object(tree.get(name)) for name in ("usage", "timings", "diffusion"))
    details = _object(usage.get("prompt_tokens_details"))
    cached = _count(timings.get("cache_n")) or _count(details.get("cached_tokens"))
    counts = {
        "prompt_tokens": _count(usage.get("prompt_tokens")) or _count(timings.get("prompt_n")) + cached,
        "cached_tokens": cached,
        "output_tokens": _count(usage.get("completion_tokens")) or _count(timings.get("predicted_n")),
        "steps": _count(diffusion.get("steps")),
        "canvas_length": _count(diffusion.get("canvas_length")),
    }
    return {name: number for name, number in counts.items() if number}


def _sampling(query: RemoteQuery, max_tokens: int, temperature: float) -> Json:
    tree: Json = {"max_tokens": max_tokens, "temperature": temperature, "seed": query.seed, "stream": True}
    return {**tree, "n": query.num_answers} if query.num_answers > 1 else tree


def _words(prompt: Prompt) -> dict[str, str]:
    return {"path": prompt.path or "a file", "language": prompt.language or "text", "fence": fence_of(prompt)}


def _piece(choice: Json, text: Any) -> TextPiece:
    reason = choice.get("finish_reason")
    return TextPiece(_index(choice), _text(text), "length" if reason == "length" else "stop" if reason else "")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _index(choice: Json) -> int:
    index = choice.get("index", 0)
    if type(index) is not int or not 0 <= index < MAX_CHOICES:
        raise ValueError("not an index")
    return index


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
