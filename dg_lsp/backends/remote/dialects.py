"""The APIs of remote servers: what a request contains, and what a response means. Pure: no network, no clock."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from typing_extensions import override

from dg_lsp.canvas.fim import FIM_FAMILIES
from dg_lsp.canvas.prompt_format import (
    CODE_CLOSING,
    FILL,
    REWRITE,
    SNIPPETS_HEADING,
    PromptTemplate,
    fence_of,
    snippet_text,
    template_words,
)
from dg_lsp.context.window import Prompt

Json = dict[str, Any]
_FINISHES = {None: "", "": "", "length": "length"}
"""`TextPiece.finish` by the server's `finish_reason`; `stop` for all others."""
_MAX_STOPS = 4
"""As many as OpenAI's API accepts."""
_FENCE_TOKENS = 64
"""Tokens that a chat model writes around its code."""
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)
_FILL = replace(
    FILL,
    before=(
        "A gap in {path} is marked <GAP>. Write the {language} code that belongs there. Answer with one fenced code"
        " block and nothing else. It holds only what stands for <GAP>: nothing that comes before or after it."
        "\n\n{fence}{language}\n"
    ),
)


class RemoteTask(StrEnum):
    """The answer to a query: the text between prefix and suffix, a changed selection, a chat message, or more text."""

    FILL = "fill"
    REWRITE = "rewrite"
    CHAT = "chat"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class RemoteQuery:
    """One request to a server."""

    task: RemoteTask
    prompt: Prompt
    max_tokens: int  # longest answer
    num_answers: int = 1
    seed: int = 0
    messages: tuple[tuple[str, str], ...] = ()  # of a chat: role (`system`, `user` or `assistant`) and text
    stops: tuple[str, ...] = ()  # texts that end a continuation
    session: str = ""
    """Equal for related requests, such as those of one document. Only a hash of it is sent."""
    is_invoked: bool = False  # the user requested it; dg-lsp servers then send improbable answers too


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """The answers received so far. Counts are 0 where the server does not report them."""

    texts: tuple[str, ...] = ()
    is_finished: bool = False  # the model ended every answer itself
    model: str = ""  # the name that the server gives its model
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0  # of all answers
    steps: int = 0  # forward passes

    @property
    def text(self) -> str:
        """The first answer."""
        return self.texts[0] if self.texts else ""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More text of one answer."""

    index: int
    text: str
    finish: str = ""  # `stop` where the model ended the answer, `length` where the answer has its maximal length


class Dialect:
    """`/v1/completions` of OpenAI, vLLM, SGLang, llama-server and `dg-lsp serve`; the base of the other APIs."""

    path: ClassVar[str] = "/v1/completions"  # below the address of the server
    follows_instructions: ClassVar[bool] = False
    continues_text: ClassVar[bool] = True

    def __init__(self, fim: str = "suffix") -> None:
        """`fim` is `suffix`, `none` or a family of `FIM_FAMILIES`."""
        self._fim = fim

    def body(self, query: RemoteQuery, temperature: float, deadline_ms: float) -> Json:  # noqa: ARG002
        """The fields of the request."""
        prompt = query.prompt
        tree = {"prompt": prompt.prefix, **_sampling(query, query.max_tokens, temperature)}
        if query.task is RemoteTask.TEXT:
            return {**tree, "stop": list(query.stops[:_MAX_STOPS])} if query.stops else tree
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
            yield _piece(choice, choice["text"], _FINISHES.get(choice.get("finish_reason"), "stop"))

    def extract(self, answer: RemoteAnswer, query: RemoteQuery) -> RemoteAnswer:  # noqa: ARG002
        """The part of the texts that answers the query."""
        return answer


class InfillDialect(Dialect):
    """`/infill` of llama-server and `dg-lsp serve`."""

    path: ClassVar[str] = "/infill"
    continues_text: ClassVar[bool] = False

    @override
    def body(self, query: RemoteQuery, temperature: float, deadline_ms: float) -> Json:
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

    @override
    def pieces(self, tree: Any) -> Iterator[TextPiece]:
        for choice in tree if isinstance(tree, list) else [tree]:
            finish = "length" if choice.get("stop_type") == "limit" else "stop"
            is_last = choice.get("stop", True) is True
            yield _piece(choice, choice["content"], finish if is_last else "")


class ChatDialect(Dialect):
    """`/v1/chat/completions` of a model that follows instructions."""

    path: ClassVar[str] = "/v1/chat/completions"
    follows_instructions: ClassVar[bool] = True
    continues_text: ClassVar[bool] = False

    @override
    def body(self, query: RemoteQuery, temperature: float, deadline_ms: float) -> Json:
        messages = query.messages
        max_tokens = query.max_tokens
        if query.task is not RemoteTask.CHAT:
            question = _question(_FILL if query.task is RemoteTask.FILL else REWRITE, query.prompt)
            messages = (("user", question),)
            max_tokens += _FENCE_TOKENS
        tree = {"messages": [{"role": role, "content": text} for role, text in messages]}
        return {**tree, **_sampling(query, max_tokens, temperature)}

    @override
    def pieces(self, tree: Any) -> Iterator[TextPiece]:
        for choice in tree["choices"]:
            message = choice["delta"] if "delta" in choice else choice["message"]
            finish = _FINISHES.get(choice.get("finish_reason"), "stop")
            yield _piece(choice, message.get("content") or "", finish)

    @override
    def extract(self, answer: RemoteAnswer, query: RemoteQuery) -> RemoteAnswer:
        if query.task is RemoteTask.CHAT:
            return answer
        blocks = [fenced_code(text) for text in answer.texts]
        line = query.prompt.prefix.rpartition("\n")[2] if query.task is RemoteTask.FILL else ""
        codes = tuple(without_line_start(code, line) for code, _ in blocks)
        is_closed = len(blocks) == query.num_answers and all(is_closed for _, is_closed in blocks)
        return replace(answer, texts=codes, is_finished=answer.is_finished or is_closed)


def dialect_of(api: str, fim: str) -> Dialect:
    """The dialect of the settings `remote.api` and `remote.fim`."""
    return {"infill": InfillDialect, "chat": ChatDialect}.get(api, Dialect)(fim)


def _question(template: PromptTemplate, prompt: Prompt) -> str:
    """The file with a marked part, after the snippets."""
    fence = fence_of(prompt)
    words = template_words(prompt)
    chunks = [snippet_text(chunk, fence, prompt.language) for chunk in prompt.snippets.chunks]
    snippets = SNIPPETS_HEADING + "".join(chunks) if chunks else ""
    before = template.before.format(**words)
    after = CODE_CLOSING.format(**words)
    selection = prompt.selection.removesuffix("\n") + "\n" if template is REWRITE else ""
    code = prompt.prefix + template.opening + selection + template.closing + prompt.suffix
    return snippets + before + code + after


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
    start, unindented = line.lstrip(), code.lstrip(" \t")
    if not start:  # only indentation
        return code.removeprefix(line)
    if unindented.startswith(start):
        return unindented.removeprefix(start)
    return "" if start.startswith(unindented) else code


def usage_of(tree: Json) -> dict[str, int]:
    """The counts of `RemoteAnswer` that a response reports; other values than positive integers are ignored."""

    def count(*names: str) -> int:
        value: Any = tree
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if type(value) is int and value > 0 else 0

    cached = count("timings", "cache_n") or count("usage", "prompt_tokens_details", "cached_tokens")
    counts = {
        "prompt_tokens": count("usage", "prompt_tokens") or count("timings", "prompt_n") + cached,
        "cached_tokens": cached,
        "output_tokens": count("usage", "completion_tokens") or count("timings", "predicted_n"),
        "steps": count("diffusion", "steps"),
    }
    return {name: number for name, number in counts.items() if number}


def _sampling(query: RemoteQuery, max_tokens: int, temperature: float) -> Json:
    tree: Json = {"max_tokens": max_tokens, "temperature": temperature, "seed": query.seed, "stream": True}
    return {**tree, "n": query.num_answers} if query.num_answers > 1 else tree


def _piece(choice: Json, text: Any, finish: str) -> TextPiece:
    index = choice.get("index", 0)
    if not isinstance(text, str) or type(index) is not int or index < 0:
        raise ValueError("no text or no index")
    return TextPiece(index, text, finish)
