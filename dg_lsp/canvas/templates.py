"""Chat templates and what is asked in them: data, no code knows a word of it."""

from dataclasses import dataclass

from dg_lsp.errors import ModelUnsupportedError


@dataclass(frozen=True, slots=True)
class Special:
    """One token of the vocabulary, by its spelling."""

    spelling: str


Piece = Special | str


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What stands around the one thing that is asked, up to where the answer begins; thinking is off."""

    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, in words; `{path}`, `{language}`, `{fence}` and `{instruction}` are filled in.

    The code comes between `before` and `after`: what precedes the place, `opening`, for a rewrite what is to be
    rewritten and `closing`, then what follows.
    """

    before: str
    opening: str
    closing: str
    after: str
    answer: str
    """How the answer begins, frozen in the canvas: the code goes on from there."""


TEMPLATES = {
    # transformers' Gemma 4 processor: with thinking off the answer begins after an empty thought
    "gemma4": ChatTemplate(
        before=(Special("<bos>"), Special("<|turn>"), "user\n"),
        after=(
            Special("<turn|>"),
            "\n",
            Special("<|turn>"),
            "model\n",
            Special("<|channel>"),
            "thought\n",
            Special("<channel|>"),
        ),
    ),
}

FILL = Question(
    before=(
        "A gap in {path} is marked <GAP>. Write the {language} code that belongs there, from the beginning of its"
        " line on. Say nothing that stands before or after the gap.\n\n{fence}{language}\n"
    ),
    opening="<GAP>",
    closing="",
    after="\n{fence}",
    answer="{fence}{language}\n",
)
EXTRA_BEFORE = "Other code, for reference:\n\n"
EXTRA_CHUNK = "{path}\n{fence}{language}\n{text}{fence}\n\n"
"""How each piece of code from elsewhere stands before a question; `{text}` ends its last line."""
REWRITE = Question(
    before=(
        "A part of {path} is marked <PART>. Rewrite this {language} code: {instruction}\n"
        "Answer with the whole part and nothing else.\n\n{fence}{language}\n"
    ),
    opening="<PART>\n",
    closing="</PART>\n",
    after="\n{fence}",
    answer="{fence}{language}\n",
)


def template_of(name: str, model: str) -> ChatTemplate:
    """A template by the name that a model's spec says.

    Raises:
        ModelUnsupportedError: the model has none, or one that this version does not know.
    """
    if name not in TEMPLATES:
        what = f"the chat template {name!r}, which this version does not know" if name else "no chat template"
        raise ModelUnsupportedError(f"{model} has {what}; choose the prompt format fim, pinned or prefix")
    return TEMPLATES[name]
