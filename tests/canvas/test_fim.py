"""Prompts of a completion: sentinels in either order, or none; snippets of other files; prompt formats."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from scripted import MASK_SPEC, MIDDLE_ID, PREFIX_ID, SUFFIX_ID, ByteTokenizer

from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.prompt_format import in_infill_format, layout_of, takes_snippets
from dg_lsp.canvas.spec import DecoderName, ExpectedPasses, PromptFormat
from dg_lsp.context.window import Prompt, Snippet, Snippets, SnippetSource
from dg_lsp.errors import ModelUnsupportedError

TOKENIZER = ByteTokenizer()
START_ID = 298
PREFIX_ONLY = replace(MASK_SPEC, fim=None, prompt_format=PromptFormat.PREFIX)
INFILL = replace(PREFIX_ONLY, prompt_format=PromptFormat.INFILL)


def ids_of(text):
    return TOKENIZER.encode(text).tolist()


def text_of(ids):
    return TOKENIZER.decode(token_ids(ids)).decode()


def shown(prefix, suffix, max_tokens=100, spec=MASK_SPEC):
    """The parts of prefix and suffix in the prompt."""
    layout = layout_of(Prompt(prefix, suffix), TOKENIZER, spec, max_tokens)
    assert len(layout.prompt_ids) <= max_tokens
    return text_of(layout.before_ids) + layout.removed.decode(), text_of(layout.after_ids)


@pytest.mark.parametrize(
    ("spec", "prefix", "ids"),
    [
        pytest.param(MASK_SPEC, "", [SUFFIX_ID, *ids_of("yz"), PREFIX_ID, MIDDLE_ID], id="start of the buffer"),
        pytest.param(PREFIX_ONLY, "x ab", ids_of("x"), id="prefix only, up to a token boundary"),
        pytest.param(PREFIX_ONLY, "ab", ids_of("\n"), id="prefix only, in the first word"),
        pytest.param(PREFIX_ONLY, "", ids_of("\n"), id="prefix only, at the start of the buffer"),
        pytest.param(INFILL, "abc", ids_of("a"), id="most of a short prefix is in the canvas"),
        pytest.param(INFILL, "a", ids_of("a"), id="one character"),
        pytest.param(INFILL, "", ids_of("\n"), id="canvas at the start of the buffer"),
        pytest.param(replace(INFILL, start_ids=(START_ID,)), "", [START_ID], id="a start token"),
    ],
)
def test_a_prompt_is_never_empty(spec, prefix, ids):
    assert layout_of(Prompt(prefix, "yz"), TOKENIZER, spec, 100).prompt_ids.tolist() == ids


def test_infill_puts_the_end_of_the_prefix_into_the_canvas_and_the_rest_into_the_prompt():
    layout = layout_of(Prompt("def f(x):\n    return ", "\n\nf(1)\n"), TOKENIZER, INFILL, 100)
    parts = (layout.prompt_ids, layout.head_ids, layout.tail_ids)
    assert [text_of(ids) for ids in parts] == ["def f(x):\n   ", " return ", "\n\nf(1)\n"]


def test_a_long_suffix_keeps_its_beginning_and_at_most_its_fraction():
    assert shown("p" * 60, "abcdef" * 100, max_tokens=103) == ("p" * 60, ("abcdef" * 100)[:30])


def test_a_long_prefix_keeps_its_end_and_typing_rarely_moves_its_start():
    prefix, _ = shown("".join(map(chr, range(48, 122))), "", max_tokens=43)
    assert prefix.endswith("wxy")
    assert len(prefix) > 40 * 7 / 8 - 1
    typed = [shown("x" * 500 + "y" * n, "", max_tokens=103)[0] for n in range(100)]
    starts = [500 + n - len(prefix) for n, prefix in enumerate(typed)]
    assert len(set(starts)) <= 100 / 12 + 2


def test_a_model_without_sentinels_is_refused():
    with pytest.raises(ModelUnsupportedError, match="scripted"):
        layout_of(Prompt("", ""), TOKENIZER, replace(MASK_SPEC, fim=None), 100)


def test_the_format_infill_drops_the_causal_head_and_the_expectations_of_the_models_own_format():
    expectations = (ExpectedPasses("block", DecoderName.DIFFUSION, 0.0, 0.0, 3.0, 0.5),)
    spec = in_infill_format(replace(MASK_SPEC, expectations=expectations))
    assert (spec.prompt_format, spec.expectations, spec.has_causal_head) == (PromptFormat.INFILL, (), False)


@pytest.mark.parametrize("name", [PromptFormat.INFILL, PromptFormat.PREFIX])
@pytest.mark.parametrize(("template", "first_id"), [("gemma4", START_ID), ("", *ids_of("a"))])
def test_formats_of_an_instruct_model_begin_with_its_start_token(monkeypatch, name, template, first_id):
    monkeypatch.setattr(ByteTokenizer, "special", lambda _, spelling: START_ID if spelling == "<bos>" else None)
    spec = replace(MASK_SPEC, prompt_format=name, template=template)
    assert layout_of(Prompt("a = 1\nb = ", "\nc"), TOKENIZER, spec, 100).prompt_ids[0] == first_id


WITH_FILES = replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, prompt_with_files=("{files}", *MASK_SPEC.fim.prompt)))
CHUNKS = (
    Snippet(SnippetSource.EDITS, "pkg/b.py", "b = 2\n"),
    Snippet(SnippetSource.GIVEN, "pkg/a.py", "def a():\n    ..."),
)


def prompt(*chunks, language="python"):
    return Prompt("x = ", "\n", path="pkg/x.py", language=language, snippets=Snippets(chunks))


def snippet_text(prompt, max_tokens=1000):
    """The snippets before the prefix."""
    return text_of(layout_of(prompt, TOKENIZER, MASK_SPEC, max_tokens).before_ids).removesuffix(prompt.prefix)


LINES = [f"line_{i} = {i}" for i in range(40)]
TEST, OPEN_FILES = SnippetSource.TEST, SnippetSource.OPEN_FILES


@pytest.mark.parametrize(
    ("source", "lines", "others"),
    [
        pytest.param(OPEN_FILES, LINES, ("def a()", "b = 2"), id="after more important ones"),
        pytest.param(TEST, LINES, (), id="the output of a test, before all others"),
        pytest.param(TEST, [*LINES[:30], "x" * 400, *LINES[31:]], (), id="an output with a line longer than all room"),
    ],
)
def test_a_long_snippet_keeps_its_first_lines_and_the_output_of_a_test_its_last_ones(source, lines, others):
    text = snippet_text(prompt(Snippet(source, "long", "\n".join(lines)), *CHUNKS), 800)
    assert len(text) <= 200
    assert all(other in text for other in others)
    kept = [line for line in text.split("\n") if line.startswith("line_")]
    assert kept
    assert kept == (lines[-len(kept) :] if source is TEST else lines[: len(kept)])


def test_a_prompt_without_snippets_or_room_for_them_is_unchanged():
    assert snippet_text(prompt()) == snippet_text(prompt(*CHUNKS), 40) == ""


@pytest.mark.parametrize("format_", [PromptFormat.FIM, PromptFormat.PREFIX, PromptFormat.INFILL])
@pytest.mark.parametrize("max_tokens", [8, 40, 100, 400])
def test_no_prompt_exceeds_its_limit(format_, max_tokens):
    spec = replace(MASK_SPEC, prompt_format=format_)
    given = replace(prompt(*CHUNKS), prefix="value = compute()\n" * 60, suffix="more()\n" * 60)
    assert len(layout_of(given, TOKENIZER, spec, max_tokens).prompt_ids) <= max_tokens


@pytest.mark.parametrize(("language", "comment"), [("go", "//"), ("plaintext", "#")])
def test_paths_are_comments_of_the_language_or_else_of_the_snippets_language(language, comment):
    assert snippet_text(prompt(*CHUNKS, language=language)).startswith(f"{comment} pkg/a.py\n")


@pytest.mark.parametrize(
    ("spec", "when", "expected"),
    [
        pytest.param(WITH_FILES, "auto", True, id="file separator"),
        pytest.param(replace(MASK_SPEC, prompt_format=PromptFormat.INSTRUCT), "auto", True, id="instructions"),
        pytest.param(replace(MASK_SPEC, takes_snippets=True), "auto", True, id="trained"),
        pytest.param(replace(MASK_SPEC, takes_snippets=True), "never", False, id="trained, never"),
    ],
)
def test_models_that_were_trained_with_snippets_get_them_unless_the_user_turns_them_off(spec, when, expected):
    assert takes_snippets(spec, when) is expected


def test_only_the_part_of_a_huge_snippet_that_may_fit_is_tokenized():
    tokenizer = Mock(wraps=TOKENIZER)
    lines = "\n".join(f"value_{number} = {number}" for number in range(300_000))
    ids, cut = (
        layout_of(prompt(Snippet(SnippetSource.GIVEN, "a.py", text)), tokenizer, MASK_SPEC, 1000).before_ids
        for text in (lines, "x" * 5_000_000)
    )
    assert text_of(ids).startswith("# a.py\nvalue_0 = 0\nvalue_1 = 1\n")
    assert 200 < len(ids) <= 254
    assert text_of(cut) == "x = "
    assert sum(len(call.args[0]) for call in tokenizer.encode.call_args_list) < 200_000
