"""Prompts for models that follow instructions: the file with a gap marked, and an answer that has begun already.

The line of the cursor, as far as it is written, stands frozen in the canvas only, where the answer goes on from it: a
character typed changes no token of the cached prompt. Parts are tokenized apart, as text; what a buffer spells like a
special token stays text.
"""

import re
from dataclasses import dataclass

import numpy as np

from dg_lsp.canvas.extra import fitting
from dg_lsp.canvas.fim import SUFFIX_SHARE
from dg_lsp.canvas.layout import NOTHING, Layout, end_of
from dg_lsp.canvas.pieces import encoded
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.templates import EXTRA_BEFORE, EXTRA_CHUNK, FILL, REWRITE, Question, template_of
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.extra import Chunk
from dg_lsp.context.prompt import Prompt

MAX_LINE_HEAD = 24
"""Tokens of the cursor's line that are frozen; what a longer one has before them is shown before the gap."""
_FENCES = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
_NO_NAME = "a file"
_NO_LANGUAGE = "text"


def instruct_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """A fill: the answer begins with the cursor's own line.

    Raises:
        ModelUnsupportedError: the model has no chat template, or lacks a token of it.
    """
    cut = prompt.prefix.rfind("\n") + 1
    line = tokenizer.encode(prompt.prefix[cut:])
    excess = max(0, len(line) - MAX_LINE_HEAD)
    excess = -(-excess // MAX_LINE_HEAD) * MAX_LINE_HEAD  # in steps, so that typing rarely moves it
    above = np.concatenate([tokenizer.encode(prompt.prefix[:cut]), line[:excess]])
    asking = _Asking(FILL, prompt, tokenizer, spec)
    return asking.layout(token_ids(above), NOTHING, line[excess:], max_tokens)


def rewrite_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """A rewrite of the prompt's selection by its instruction: the answer begins with the selection's indentation.

    Raises:
        ModelUnsupportedError: the model has no chat template, or lacks a token of it.
    """
    lines = prompt.selection.removesuffix("\n") + "\n"
    indentation = lines[: len(lines) - len(lines.lstrip(" "))]
    asking = _Asking(REWRITE, prompt, tokenizer, spec)
    above = tokenizer.encode(prompt.prefix)
    return asking.layout(above, tokenizer.encode(lines), tokenizer.encode(indentation), max_tokens)


def fence_of(prompt: Prompt) -> str:
    """Backticks, more than any line of the code begins with."""
    others = (chunk.text for chunk in prompt.extra.chunks)
    code = "\n".join((prompt.prefix, prompt.selection, prompt.suffix, *others))
    longest = max((len(run) for run in _FENCES.findall(code)), default=0)
    return "`" * max(3, longest + 1)


@dataclass(frozen=True, slots=True)
class _Asking:
    """One question about one prompt."""

    question: Question
    prompt: Prompt
    tokenizer: Tokenizer
    spec: ModelSpec

    def layout(self, above: TokenIds, selection: TokenIds, answer: TokenIds, max_tokens: int) -> Layout:
        """At most `max_tokens` of prompt, unless the selection alone is longer; the code around it gives way."""
        template = template_of(self.spec.template, self.spec.name)
        question, encode = self.question, self.tokenizer.encode
        begin, asked = template.before, self._text(question.before)
        extra = self._extra(int(max_tokens * self.prompt.extra.share))
        if len(extra):
            opening = encoded((*begin, EXTRA_BEFORE), self.tokenizer, self.spec.name)
            before = token_ids(np.concatenate([opening, extra, encode(asked)]))
        else:
            before = encoded((*begin, asked), self.tokenizer, self.spec.name)
        after = encoded((self._text(question.after), *template.after), self.tokenizer, self.spec.name)
        marked = [encode(question.opening), selection, encode(question.closing)]
        room = max(0, max_tokens - len(before) - len(after) - sum(map(len, marked)))
        suffix = encode(self.prompt.suffix)[: int(room * SUFFIX_SHARE)]
        shown = end_of(above, room - len(suffix))
        return Layout(
            token_ids(np.concatenate([before, shown, *marked, suffix, after])),
            head_ids=token_ids(np.concatenate([encode(self._text(question.answer)), answer])),
            before_ids=token_ids(np.concatenate([shown, answer])),
            after_ids=suffix,
            stop=fence_of(self.prompt),
        )

    def _extra(self, room: int) -> TokenIds:
        """Code from elsewhere, each piece tokenized apart; shape (0..room,)."""
        fence = fence_of(self.prompt)

        def encode(chunk: Chunk) -> TokenIds:
            text = chunk.text.strip("\n") + "\n"
            language = self.prompt.language
            return self.tokenizer.encode(EXTRA_CHUNK.format(path=chunk.path, fence=fence, language=language, text=text))

        return token_ids(np.concatenate([NOTHING, *fitting(self.prompt, room, encode)]))

    def _text(self, text: str) -> str:
        prompt = self.prompt
        return text.format(
            path=prompt.path or _NO_NAME,
            language=prompt.language or _NO_LANGUAGE,
            fence=fence_of(prompt),
            instruction=prompt.instruction,
        )
