"""The APIs of remote servers: what a request contains, and what a response means. Pure: no network, no clock."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from dg_lsp.canvas.fim import FIM_FAMILIES
from dg_lsp.canvas.prompt_format import (
    CODE_CLOSING,
    CODE_OPENING,
    GAP_MARK,
    REWRITE,
    SNIPPETS_HEADING,
    PromptTemplate,
    snippet_text,
    template_words,
)
from dg_lsp.context.window import Prompt

LANGUAGES_HEADER = "dg-lsp-languages"
"""In an answer of `dg-lsp serve` whose model knows some languages only: their LSP ids, separated by commas."""
TRIGGER_HEADER = "dg-lsp-trigger"
"""In a request to `dg-lsp serve`: `invoked` if the user requested the completion, and did not just type."""
Json = dict[str, Any]
_CUT_REASONS = ("length", "abort", "error", "repetition", "content_filter", "model_length")
"""`finish_reason` of an answer that the model did not end: of OpenAI, vLLM, SGLang and Mistral."""
_FINISHES: dict[str | None, str] = {None: "", "": "", **dict.fromkeys(_CUT_REASONS, "length")}
"""`TextPiece.finish` by the server's `finish_reason`; `stop` for all others."""
_MAX_STOPS = 4  # as many as OpenAI's API accepts
_FENCE_TOKENS = 64  # tokens that a chat model writes around its code
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
"""Of a server that leaves the thought of a model in its answer."""
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)
# The line is repeated and the request comes last, as in a rewrite: small models otherwise answer with other code.
_FILL = PromptTemplate(
    CODE_OPENING,
    request="{fence}\n\nAnswer with the code only.",
    between=CODE_CLOSING
    + f"\n\nIn this file, {{path}}, {GAP_MARK} stands for missing {{language}} code. Write the line with"
    " the gap again, with the missing code in its place:\n\n" + CODE_OPENING,
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
    finish: str = ""  # `stop` where the model ended the answer, `length` where something else did


def _completion_body(query: RemoteQuery, fim: str, temperature: float, _deadline_ms: float) -> Json:
    prompt = query.prompt
    # vLLM and SGLang refuse an empty prompt
    tree = {"prompt": prompt.prefix or "\n", **_sampling(query, query.max_tokens, temperature)}
    if query.task is RemoteTask.TEXT:
        return {**tree, "stop": list(query.stops[:_MAX_STOPS])} if query.stops else tree
    if fim == "suffix":
        tree["suffix"] = prompt.suffix
    elif family := FIM_FAMILIES.get(fim):
        tree["prompt"] = family.prompt.format(prefix=prompt.prefix, suffix=prompt.suffix)
        if family.end:  # some servers return these tokens as text
            tree["stop"] = list(family.end[:_MAX_STOPS])
    return tree


def _infill_body(query: RemoteQuery, _fim: str, temperature: float, deadline_ms: float) -> Json:
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


def _infill_pieces(tree: Any) -> Iterator[TextPiece]:
    for choice in tree if isinstance(tree, list) else [tree]:
        finish = "length" if choice.get("stop_type") == "limit" else "stop"
        is_last = choice.get("stop", True) is True
        yield _piece(choice, choice["content"], finish if is_last else "")


def _chat_body(query: RemoteQuery, _fim: str, temperature: float, _deadline_ms: float) -> Json:
    messages = query.messages
    max_tokens = query.max_tokens
    if query.task is not RemoteTask.CHAT:
        question = _question(_FILL if query.task is RemoteTask.FILL else REWRITE, query.prompt)
        messages = (("user", question),)
        max_tokens += _FENCE_TOKENS
    tree = {"messages": [{"role": role, "content": text} for role, text in messages]}
    return {**tree, **_sampling(query, max_tokens, temperature)}


def _choice_pieces(tree: Any) -> Iterator[TextPiece]:
    """Of completions, and of chats as a whole or as a stream."""
    for choice in tree["choices"]:
        message = choice["delta"] if "delta" in choice else choice.get("message")
        text = choice["text"] if "text" in choice else message.get("content") or ""
        yield _piece(choice, text, _FINISHES.get(choice.get("finish_reason"), "stop"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """The API of a server."""

    path: str  # below the address of the server
    body: Callable[[RemoteQuery, str, float, float], Json]
    """The fields of a request: of a query, `remote.fim`, a temperature, and the milliseconds to the deadline."""
    pieces: Callable[[Any], Iterator[TextPiece]]
    """The pieces in one event of a stream, or in a whole response.

    Raises KeyError, TypeError, AttributeError or ValueError where the response has another shape.
    """
    follows_instructions: bool = False
    continues_text: bool = False

    def extract(self, answer: RemoteAnswer, query: RemoteQuery) -> RemoteAnswer:
        """The part of the texts that answers the query: of a chat about code its first block."""
        if not self.follows_instructions or query.task is RemoteTask.CHAT:
            return answer
        selection, language = query.prompt.selection, query.prompt.language
        blocks = [fenced_code(_THOUGHT.sub("", text), selection, language) for text in answer.texts]
        line = query.prompt.prefix.rpartition("\n")[2] if query.task is RemoteTask.FILL else ""
        codes = tuple(without_line_start(code, line) for code, _ in blocks)
        is_closed = len(blocks) == query.num_answers and all(is_closed for _, is_closed in blocks)
        return replace(answer, texts=codes, is_finished=answer.is_finished or is_closed)


DIALECTS = {
    "completions": Dialect("/v1/completions", _completion_body, _choice_pieces, continues_text=True),
    "infill": Dialect("/infill", _infill_body, _infill_pieces),
    "chat": Dialect("/v1/chat/completions", _chat_body, _choice_pieces, follows_instructions=True),
}
"""By the setting `remote.api`: OpenAI's, also of vLLM, SGLang and `dg-lsp serve`; llama-server's; and OpenAI's chat."""


def _question(template: PromptTemplate, prompt: Prompt) -> str:
    """The file with a marked part, after the snippets."""
    words = template_words(prompt)
    chunks = [snippet_text(chunk, words["fence"], prompt.language) for chunk in prompt.snippets.chunks]
    snippets = SNIPPETS_HEADING + "".join(chunks) if chunks else ""
    selection = prompt.selection
    part = selection.removesuffix("\n")
    if template is not REWRITE:  # the gap, and its line
        selection = GAP_MARK
        part = prompt.prefix.rpartition("\n")[2] + GAP_MARK + prompt.suffix.partition("\n")[0]
    question = template.before.format(**words) + prompt.prefix + selection + prompt.suffix
    return snippets + question + template.between.format(**words) + part + "\n" + template.request.format(**words)


def fenced_code(answer: str, selection: str = "", language: str = "") -> tuple[str, bool]:
    """The code in the first fence, and whether the fence is closed; an answer without a fence is code itself.

    There is no code as long as the answer may still start with a fence. The code for a selection with fences, as in
    Markdown, may have some itself: its own fence names the language or starts the answer, and ends with the last mark.
    """
    is_nested = selection != "" and (language == "markdown" or _FENCE.search(selection) is not None)
    if is_nested:
        answer = answer.lstrip("\n")
        named = rf"^[ \t]*(`{{3,}}|~{{3,}})[ \t]*(?:{re.escape(language)}|md)[ \t]*\n"
        is_fenced = _FENCE.match(selection.lstrip()) is None
        opening = re.search(named, answer, re.MULTILINE) or (_FENCE.match(answer) if is_fenced else None)
    else:
        opening = _FENCE.search(answer)
    if opening is None:
        return ("", False) if answer.lstrip()[:1] in ("", "`", "~") and not is_nested else (answer, False)
    code = answer[opening.end() :]
    closings = [*re.finditer(rf"^[ \t]*{opening[1]}[ \t\r]*$", code, re.MULTILINE)]
    if not closings:
        return code, False
    return code[: closings[-1 if is_nested else 0].start()].removesuffix("\n"), not is_nested


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
