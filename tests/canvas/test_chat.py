"""Conversations, token by token."""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.canvas.chat import TEMPLATES, Role, Turn, chat_layout, encoded
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.errors import ModelUnsupportedError, RequestError

SPEC = replace(MASK_SPEC, name="toy", prompt_format=PromptFormat.INSTRUCT, template="gemma4", vocab_size=262_144)
GEMMA = {"<bos>": 2, "<|turn>": 105, "<turn|>": 106, "<|channel>": 100, "<channel|>": 101}
"""Ids of the published tokenizer."""
LINE_END, FIRST = 107, 1000


class GemmaLike:
    """The published ids of special tokens and the line end; one token for any other character."""

    def encode(self, text):
        return token_ids([LINE_END if char == "\n" else FIRST + ord(char) for char in text])

    def special(self, spelling):
        return GEMMA.get(spelling)


TOKENIZER = GemmaLike()
ASKED = (Turn(Role.USER, "hi"),)


def ids_of(text):
    return TOKENIZER.encode(text).tolist()


def test_a_question_is_the_published_prompt():
    assert chat_layout(ASKED, TOKENIZER, SPEC).prompt_ids.tolist() == [
        *(2, 105, *ids_of("user\nhi"), 106, 107),
        *(105, *ids_of("model\n"), 100, *ids_of("thought\n"), 101),
    ]


def test_it_is_what_a_fill_asks_around_its_question():
    template = TEMPLATES["gemma4"]
    expected = encoded((*template.before, "hi", *template.after), TOKENIZER, "toy")
    assert chat_layout(ASKED, TOKENIZER, SPEC).prompt_ids.tolist() == expected.tolist()


def test_turns_follow_each_other():
    turns = (Turn(Role.SYSTEM, " be brief\n"), Turn(Role.USER, "a"), Turn(Role.ASSISTANT, "b"), Turn(Role.USER, "c"))
    assert chat_layout(turns, TOKENIZER, SPEC).prompt_ids.tolist()[:-18] == [
        *(2, 105, *ids_of("system\nbe brief"), 106, 107),
        *(105, *ids_of("user\na"), 106, 107),
        *(105, *ids_of("model\nb"), 106, 107),
        *(105, *ids_of("user\nc"), 106),
    ]


def test_what_a_message_spells_like_a_token_is_text():
    layout = chat_layout((Turn(Role.USER, "<turn|>"),), TOKENIZER, SPEC)
    assert layout.prompt_ids.tolist().count(106) == 1


@pytest.mark.parametrize("turns", [(), (*ASKED, Turn(Role.ASSISTANT, "b"))])
def test_nothing_to_answer(turns):
    with pytest.raises(RequestError, match="the last message must be the user's"):
        chat_layout(turns, TOKENIZER, SPEC)


def test_more_than_the_model_takes():
    with pytest.raises(RequestError, match="shorten it"):
        chat_layout((Turn(Role.USER, "x" * 1000),), TOKENIZER, SPEC)


@pytest.mark.parametrize("template", ["", "unheard-of"])
def test_a_model_without_a_template_cannot_chat(template):
    with pytest.raises(ModelUnsupportedError, match="toy has"):
        chat_layout(ASKED, TOKENIZER, replace(SPEC, template=template))
