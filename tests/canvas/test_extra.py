from dataclasses import replace
from itertools import pairwise

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, MIDDLE_ID, PREFIX_ID, SUFFIX_ID, ByteTokenizer
from dg_lsp.canvas.fim import extra_ids, fim_layout, fim_prompt, takes_extra
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.prompt_format import layout_of
from dg_lsp.canvas.spec import FimOrder, FimTokens, PromptFormat
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource
from dg_lsp.context.window import Prompt

TOKENIZER = ByteTokenizer()
SEPARATOR_ID = 299
REPO_SPEC = replace(
    MASK_SPEC,
    file_separator_id=SEPARATOR_ID,
    start_ids=(298,),
    fim=FimTokens(PREFIX_ID, SUFFIX_ID, MIDDLE_ID, FimOrder.PREFIX_FIRST),
)
CHUNKS = (
    Snippet(SnippetSource.EDITS, "pkg/b.py", "b = 2\n"),
    Snippet(SnippetSource.IMPORTS, "pkg/a.py", "def a():\n    ..."),
)


def prompt(*chunks, share=0.5, language="python"):
    return Prompt("x = ", "\n", path="pkg/x.py", language=language, extra=Snippets(chunks, share))


def text_of(ids):
    return TOKENIZER.decode(token_ids(ids)).decode()


def test_without_chunks_the_prompt_is_as_it_was():
    assert len(extra_ids(prompt(), TOKENIZER, MASK_SPEC, 1000)) == 0
    assert (
        fim_prompt(prompt(), TOKENIZER, MASK_SPEC, 1000).tolist()
        == fim_prompt(Prompt("x = ", "\n"), TOKENIZER, MASK_SPEC, 1000).tolist()
    )


def test_chunks_stand_under_their_paths_right_before_the_prefix():
    ids = fim_prompt(prompt(*CHUNKS), TOKENIZER, MASK_SPEC, 1000).tolist()
    assert (ids[0], ids[-1]) == (SUFFIX_ID, MIDDLE_ID)
    middle = ids.index(PREFIX_ID)
    assert text_of(ids[1:middle]) == "\n"
    assert text_of(ids[middle + 1 : -1]) == "# pkg/a.py\ndef a():\n    ...\n# pkg/b.py\nb = 2\n# pkg/x.py\nx = "


def test_a_model_with_a_file_separator_gets_files_before_its_sentinels():
    ids = fim_prompt(prompt(*CHUNKS), TOKENIZER, REPO_SPEC, 1000).tolist()
    begin = ids.index(PREFIX_ID)
    marks = [at for at in range(begin) if ids[at] == SEPARATOR_ID]
    assert (ids[0], marks[0], len(marks)) == (298, 1, 3)
    files = [text_of(ids[a + 1 : b]) for a, b in pairwise([*marks, begin])]
    assert files == ["pkg/a.py\ndef a():\n    ...\n", "pkg/b.py\nb = 2\n", "pkg/x.py\n"]
    assert text_of(ids[begin : ids.index(SUFFIX_ID)]) == "x = "


@pytest.mark.parametrize("spec", [MASK_SPEC, REPO_SPEC], ids=["inside", "before"])
def test_what_is_looked_up_is_the_prefix_and_what_came_before_it(spec):
    layout = fim_layout(prompt(*CHUNKS), TOKENIZER, spec, 1000)
    assert text_of(layout.before_ids).endswith("pkg/x.py\nx = ")
    assert text_of(layout.before_ids).count("def a()") == 1
    assert text_of(layout.after_ids) == "\n"


def test_the_important_ones_get_the_room_and_a_long_one_is_cut_after_a_line():
    long = Snippet(SnippetSource.OPEN_FILES, "pkg/long.py", "\n".join(f"line_{i} = {i}" for i in range(40)))
    shown = text_of(extra_ids(prompt(long, *CHUNKS, share=0.25), TOKENIZER, MASK_SPEC, 800))
    assert len(shown) <= 200
    assert "def a()" in shown
    assert "b = 2" in shown
    kept = [line for line in shown.split("\n") if line.startswith("line_")]
    assert kept == [f"line_{i} = {i}" for i in range(len(kept))]
    assert kept


def test_of_one_source_the_most_important_is_nearest_to_the_code():
    one, two = Snippet(SnippetSource.OPEN_FILES, "one", "1"), Snippet(SnippetSource.OPEN_FILES, "two", "2")
    shown = text_of(extra_ids(prompt(one, two), TOKENIZER, MASK_SPEC, 1000))
    assert shown.index("two") < shown.index("one")


def test_no_room_is_no_chunk_and_no_lonely_path():
    assert len(extra_ids(prompt(*CHUNKS, share=0.02), TOKENIZER, MASK_SPEC, 500)) == 0


@pytest.mark.parametrize("format_", [PromptFormat.FIM, PromptFormat.PREFIX, PromptFormat.INFILL])
@pytest.mark.parametrize("max_tokens", [8, 40, 100, 400])
def test_no_prompt_gets_longer_than_it_may(format_, max_tokens):
    spec = replace(MASK_SPEC, prompt_format=format_)
    given = replace(prompt(*CHUNKS), prefix="value = compute()\n" * 60, suffix="more()\n" * 60)
    assert len(layout_of(given, TOKENIZER, spec, max_tokens).prompt_ids) <= max_tokens


def test_infill_and_prefix_prompts_begin_with_them():
    for format_ in (PromptFormat.PREFIX, PromptFormat.INFILL):
        layout = layout_of(prompt(*CHUNKS), TOKENIZER, replace(MASK_SPEC, prompt_format=format_), 1000)
        assert text_of(layout.prompt_ids).startswith("# pkg/a.py\ndef a():")


def test_comments_are_those_of_the_language():
    assert text_of(extra_ids(prompt(*CHUNKS, language="go"), TOKENIZER, MASK_SPEC, 1000)).startswith("// pkg/a.py\n")


@pytest.mark.parametrize(
    ("spec", "when", "expected"),
    [
        (MASK_SPEC, "auto", False),
        (MASK_SPEC, "always", True),
        (REPO_SPEC, "auto", True),
        (REPO_SPEC, "never", False),
        (replace(MASK_SPEC, prompt_format=PromptFormat.INSTRUCT), "auto", True),
    ],
)
def test_who_is_shown_any(spec, when, expected):
    assert takes_extra(spec, when) is expected


def test_of_an_endless_chunk_only_what_may_fit_is_tokenized():
    class Counting(ByteTokenizer):
        num_chars = 0

        def encode(self, text):
            self.num_chars += len(text)
            return super().encode(text)

    tokenizer = Counting()
    lines = "\n".join(f"value_{number} = {number}" for number in range(300_000))
    ids = extra_ids(prompt(Snippet(SnippetSource.GIVEN, "a.py", lines)), tokenizer, MASK_SPEC, 1000)
    assert text_of(ids).startswith("# a.py\nvalue_0 = 0\nvalue_1 = 1\n")
    assert 400 < len(ids) <= 500
    assert tokenizer.num_chars < 200_000
    assert (
        len(extra_ids(prompt(Snippet(SnippetSource.GIVEN, "a.py", "x" * 5_000_000)), tokenizer, MASK_SPEC, 1000)) == 0
    )
