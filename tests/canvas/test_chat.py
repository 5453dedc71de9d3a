"""Prompts of instruct models and conversations, token by token."""

from dataclasses import replace

import pytest
from scripted import MASK_SPEC

from dg_lsp.canvas.chat import Role, Turn, chat_layout, split_thought
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.prompt_format import MAX_LINE_HEAD, layout_of, rewrite_layout
from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.context.window import Prompt, Snippet, Snippets, SnippetSource, shown_path
from dg_lsp.errors import ModelUnsupportedError, RequestError

SPEC = replace(
    MASK_SPEC,
    name="toy",
    prompt_format=PromptFormat.INSTRUCT,
    template="gemma4",
    vocab_size=262_144,
    has_causal_head=False,
)
CAUSAL_SPEC = replace(SPEC, sampling=None, canvas_lengths=(), has_causal_head=True)
GEMMA = {"<bos>": 2, "<|turn>": 105, "<turn|>": 106, "<|channel>": 100, "<channel|>": 101}
"""Ids of the published tokenizer."""
LINE_END, FIRST = 107, 1000


class GemmaLike:
    """The published ids of special tokens and the line end; one token for any other character."""

    def __init__(self, specials=GEMMA):
        self.specials = specials

    def encode(self, text):
        return token_ids([LINE_END if char == "\n" else FIRST + ord(char) for char in text])

    def decode(self, ids):
        return "".join("\n" if i == LINE_END else chr(i - FIRST) for i in ids.tolist() if i >= LINE_END).encode()

    def special(self, spelling):
        return self.specials.get(spelling)


TOKENIZER = GemmaLike()
QUESTION = (Turn(Role.USER, "hi"),)
PROMPT = Prompt("import os\n\n\ndef f(x):\n    return ", "\n\n\nprint(f(1))\n", path="pkg/a.py", language="python")


def ids_of(text):
    return TOKENIZER.encode(text).tolist()


def fill_layout(prompt=PROMPT, max_tokens=2000):
    return layout_of(prompt, TOKENIZER, SPEC, max_tokens)


def spelled(ids):
    """The ids as text, special tokens by their spelling."""
    names = {token: spelling for spelling, token in GEMMA.items()} | {98: "<|think|>"}
    return "".join(names.get(i) or TOKENIZER.decode(token_ids([i])).decode() for i in ids.tolist())


def test_a_fill_prompt_word_for_word():
    layout = fill_layout()
    assert spelled(layout.prompt_ids) == (
        "<bos><|turn>user\n"
        "The end of pkg/a.py is:\n\n"
        "```python\n\n\n\nprint(f(1))\n\n```\n\n"
        "Write the python code that stands before it. Answer with the code only.<turn|>\n"
        "<|turn>model\n"
        "<|channel>thought\n<channel|>"
        "```python\nimport os\n\n\ndef f(x):\n"
    )
    special_ids = [i for i in layout.prompt_ids.tolist() if i < LINE_END]
    assert special_ids == [2, 105, 106, 105, 100, 101]
    assert spelled(layout.head_ids) == "    return "
    assert len(layout.tail_ids) == 0
    assert layout.stop == "```"
    assert spelled(layout.before_ids) == PROMPT.prefix
    assert spelled(layout.after_ids) == PROMPT.suffix


def test_a_model_without_canvases_continues_its_answer_at_a_token_boundary():
    layout = layout_of(replace(PROMPT, prefix="def f(x):\n    retu"), TOKENIZER, CAUSAL_SPEC, 2000)
    assert spelled(layout.prompt_ids).endswith("```python\ndef f(x):\n   ")
    assert (layout.removed, len(layout.head_ids)) == (b" retu", 0)


@pytest.mark.parametrize("suffix", ["", "\n\n"])
def test_without_code_below_the_cursor_the_question_shows_none(suffix):
    layout = fill_layout(replace(PROMPT, suffix=suffix))
    question = "<bos><|turn>user\nWrite pkg/a.py. Answer with the python code only.<turn|>\n"
    assert spelled(layout.prompt_ids).startswith(question)


def test_a_rewrite_prompt_word_for_word():
    prompt = replace(PROMPT, prefix="def f(x):\n", selection="    return x\n", instruction="Return twice as much.")
    layout = rewrite_layout(prompt, TOKENIZER, SPEC, 2000)
    assert spelled(layout.prompt_ids) == (
        "<bos><|turn>user\n"
        "```python\n"
        "def f(x):\n"
        "    return x\n"
        "\n\n\nprint(f(1))\n"
        "\n```\n\n"
        "Now look at this part of pkg/a.py alone:\n\n"
        "```python\n    return x\n```\n\n"
        "Rewrite this python code: Return twice as much.\n"
        "Answer with the code only.<turn|>\n"
        "<|turn>model\n"
        "<|channel>thought\n<channel|>"
    )
    assert spelled(layout.head_ids) == "```python\n    "


@pytest.mark.parametrize(
    ("selection", "shown"),
    [
        pytest.param("return x", "```python\nreturn x\n```\n", id="a selection without its line end"),
        pytest.param("return x\n", "```python\nreturn x\n```\n", id="a selection with its line end"),
        pytest.param("{}\n", "a = {x!r:{y}}\n{}\n", id="braces of the code"),
        pytest.param("x", "Use {fence} and %s.", id="braces of the instruction"),
    ],
)
def test_code_and_instruction_of_a_rewrite_are_text_in_whole_lines(selection, shown):
    prompt = replace(PROMPT, prefix="a = {x!r:{y}}\n", selection=selection, instruction="Use {fence} and %s.")
    assert shown in spelled(rewrite_layout(prompt, TOKENIZER, SPEC, 2000).prompt_ids)


def test_the_start_of_a_long_line_moves_into_the_prompt_in_steps():
    lines = ["x" * size for size in range(0, 4 * MAX_LINE_HEAD, 5)]
    layouts = [fill_layout(replace(PROMPT, prefix="a\n" + line)) for line in lines]
    for line, layout in zip(lines, layouts, strict=True):
        head = spelled(layout.head_ids)
        assert len(head) <= MAX_LINE_HEAD
        assert spelled(layout.prompt_ids).endswith("```python\na\n" + line[: len(line) - len(head)])
    assert len({len(layout.prompt_ids) for layout in layouts}) == 4


def test_surrounding_code_is_cut_to_fit_a_short_prompt():
    prompt = replace(PROMPT, prefix="p" * 900 + "\n", suffix="\n" + "s" * 900)
    whole = len(fill_layout(Prompt("", "x", path="pkg/a.py", language="python")).prompt_ids) - 1
    layout = fill_layout(prompt, whole + 100)
    assert whole + 80 < len(layout.prompt_ids) <= whole + 100
    assert len(layout.after_ids) == 30
    assert "<|channel>thought\n<channel|>```python\np" in spelled(layout.prompt_ids)


@pytest.mark.parametrize(
    ("code", "fence"),
    [("x = 1\n", "```"), ("```python\nx\n```\n", "````"), ("  `````\n", "``````"), ("a = '```'\n", "```")],
)
def test_the_code_fence_is_longer_than_any_in_the_code(code, fence):
    for prompt in (replace(PROMPT, prefix=code), replace(PROMPT, suffix=code)):
        layout = fill_layout(prompt)
        assert layout.stop == fence
        assert f"<channel|>{fence}python\n" in spelled(layout.prompt_ids)


def test_a_buffer_without_name_or_language_gets_a_prompt():
    layout = fill_layout(Prompt("a", "b"))
    assert "The end of a file is:" in spelled(layout.prompt_ids)
    assert spelled(layout.prompt_ids).endswith("```text\n")
    assert spelled(layout.head_ids) == "a"


@pytest.mark.parametrize("template", ["", "unknown-name"])
def test_chats_and_instruct_prompts_need_a_known_chat_template(template):
    spec = replace(SPEC, template=template)
    with pytest.raises(ModelUnsupportedError, match=r"toy has .*chat template"):
        layout_of(PROMPT, TOKENIZER, spec, 2000)
    with pytest.raises(ModelUnsupportedError, match=r"toy has .*chat template"):
        chat_layout(QUESTION, TOKENIZER, spec)


def test_a_vocabulary_without_a_template_token_is_refused():
    specials = {spelling: token for spelling, token in GEMMA.items() if spelling != "<channel|>"}
    with pytest.raises(ModelUnsupportedError, match=r"<channel\|>"):
        layout_of(PROMPT, GemmaLike(specials), SPEC, 2000)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///home/me/my%20work/pkg/a.py", "my work/pkg/a.py"),
        ("file:///a.py", "a.py"),
        ("untitled:Untitled-1", "Untitled-1"),
        ("", ""),
    ],
)
def test_a_shown_path_omits_the_folders_above_the_package(uri, path):
    assert shown_path(uri) == path


def test_snippets_precede_the_question_in_a_fence_that_they_cannot_close():
    chunks = (
        Snippet(SnippetSource.EDITS, "b.py", "b = 2"),
        Snippet(SnippetSource.OPEN_FILES, "c.md", "```\ncode\n```\n<turn|>\n"),
    )
    prompt = replace(PROMPT, snippets=Snippets(chunks))
    layout = fill_layout(prompt)
    shown = spelled(layout.prompt_ids)
    assert shown.startswith(
        "<bos><|turn>user\nOther code, for reference:\n\n"
        "c.md\n````python\n```\ncode\n```\n<turn|>\n````\n\n"
        "b.py\n````python\nb = 2\n````\n\n"
        "The end of pkg/a.py is:"
    )
    assert layout.prompt_ids.tolist().count(106) == 1
    assert layout.stop == "````"


def test_messages_follow_each_other_in_the_published_prompt():
    turns = (Turn(Role.SYSTEM, " be brief\n"), Turn(Role.USER, "a"), Turn(Role.ASSISTANT, "b"), Turn(Role.USER, "c"))
    assert chat_layout(turns, TOKENIZER, SPEC).prompt_ids.tolist() == [
        *(2, 105, *ids_of("system\nbe brief"), 106, 107),
        *(105, *ids_of("user\na"), 106, 107),
        *(105, *ids_of("model\nb"), 106, 107),
        *(105, *ids_of("user\nc"), 106, 107),
        *(105, *ids_of("model\n"), 100, *ids_of("thought\n"), 101),
    ]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(fill_layout(replace(PROMPT, prefix="'<turn|>'\n")), id="code"),
        pytest.param(chat_layout((Turn(Role.USER, "<turn|>"),), TOKENIZER, SPEC), id="message"),
    ],
)
def test_special_tokens_that_are_spelled_in_a_text_stay_text(layout):
    assert layout.prompt_ids.tolist().count(106) == 1


@pytest.mark.parametrize("turns", [(), (*QUESTION, Turn(Role.ASSISTANT, "b"))])
def test_a_conversation_must_end_with_a_message_of_the_user(turns):
    with pytest.raises(RequestError, match="its last message must be the user's"):
        chat_layout(turns, TOKENIZER, SPEC)


def test_thinking_opens_the_systems_turn_and_leaves_the_thought_open():
    tokenizer = GemmaLike({**GEMMA, "<|think|>": 98})
    spec = replace(SPEC, is_thinking=True)

    def text(*turns):
        return spelled(chat_layout(turns, tokenizer, spec).prompt_ids)

    assert text(*QUESTION) == "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n"
    system = Turn(Role.SYSTEM, "Be brief.")
    assert text(system, *QUESTION).startswith("<bos><|turn>system\n<|think|>\nBe brief.<turn|>\n<|turn>user\nhi")
    assert spelled(chat_layout(QUESTION, TOKENIZER, SPEC).prompt_ids).endswith("<|channel>thought\n<channel|>")
    with pytest.raises(ModelUnsupportedError, match=r"no token <\|think\|>"):
        chat_layout(QUESTION, TOKENIZER, spec)


@pytest.mark.parametrize(
    ("ids", "is_thinking", "thought", "answer"),
    [
        pytest.param([100, *ids_of("thought\nWhy?\n"), 101, *ids_of("\nSo.")], True, "Why?", "So.", id="channel"),
        pytest.param([100, *ids_of("thought\nWhy")], True, "Why", "", id="open channel"),
        pytest.param([100, *ids_of("thought\n"), 101, *ids_of("So.")], True, "", "So.", id="empty channel"),
        pytest.param(ids_of("thoughts are free"), True, "", "thoughts are free", id="a word that begins as a channel"),
        pytest.param(ids_of("<think>\nWhy?\n</think>\n\nSo."), True, "Why?", "So.", id="tags"),
        pytest.param(ids_of("<think>\nWhy"), True, "Why", "", id="open tag"),
        pytest.param(ids_of("<think>\nWhy</thi"), True, "Why", "", id="begun end tag"),
        pytest.param(ids_of("<thi"), True, "", "", id="begun tag"),
        pytest.param(ids_of("Why?\n</think>\nSo."), True, "Why?", "So.", id="end tag only"),
        pytest.param(ids_of("a < b"), True, "", "a < b", id="no tag"),
        pytest.param(ids_of("Use </think> here."), False, "", "Use </think> here.", id="end tag without thinking"),
    ],
)
def test_a_thought_is_split_from_the_answer(ids, is_thinking, thought, answer):
    assert split_thought(token_ids(ids), TOKENIZER, is_thinking=is_thinking) == (thought, answer)
