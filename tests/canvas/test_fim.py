"""Prompts of causal models: sentinels in the other order, or none; and the way back to the parts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dg_lsp.backends.scripted import MASK_ID, MASK_SPEC, MIDDLE_ID, PREFIX_ID, SUFFIX_ID, ByteTokenizer
from dg_lsp.canvas.fim import fim_layout, fim_prompt, open_canvas, prompt_parts, snippet_ids, takes_snippets
from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.canvas.prompt_format import in_format, layout_of
from dg_lsp.canvas.spec import DecoderName, ExpectedPasses, FimOrder, FimTokens, PromptFormat
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource
from dg_lsp.context.window import Prompt
from dg_lsp.errors import ModelUnsupportedError, RequestError

TOKENIZER = ByteTokenizer()


def prompt_text(prefix, suffix, max_tokens=100):
    ids = fim_prompt(Prompt(prefix, suffix), TOKENIZER, MASK_SPEC, max_tokens).tolist()
    middle = ids.index(PREFIX_ID)
    assert ids[0] == SUFFIX_ID
    assert ids[-1] == MIDDLE_ID
    assert len(ids) <= max_tokens
    return TOKENIZER.decode(token_ids(ids[middle:])).decode(), TOKENIZER.decode(token_ids(ids[:middle])).decode()


def test_the_suffix_comes_first():
    assert prompt_text("def f(", "):\n    pass\n") == ("def f(", "):\n    pass\n")


def test_an_empty_buffer_gives_three_sentinels():
    assert fim_prompt(Prompt("", ""), TOKENIZER, MASK_SPEC, 100).tolist() == [SUFFIX_ID, PREFIX_ID, MIDDLE_ID]


def test_a_long_suffix_keeps_its_beginning_and_at_most_its_fraction():
    prefix, suffix = prompt_text("p" * 60, "abcdef" * 100, max_tokens=103)
    assert suffix == ("abcdef" * 100)[:30]
    assert prefix == "p" * 60


def test_a_long_prefix_keeps_its_end():
    prefix, _ = prompt_text("".join(map(chr, range(48, 122))), "", max_tokens=43)
    assert prefix.endswith("wxy")
    assert len(prefix) > 40 * 7 / 8 - 1


def test_typing_rarely_moves_the_start_of_a_long_prefix():
    typed = [prompt_text("x" * 500 + "y" * n, "", max_tokens=103)[0] for n in range(100)]
    starts = [500 + n - len(prefix) for n, prefix in enumerate(typed)]
    assert len(set(starts)) <= 100 / 12 + 2


def test_a_model_without_sentinels_is_refused():
    spec = type(MASK_SPEC)("bare", 300, MASK_SPEC.sampling, (1,))
    with pytest.raises(ModelUnsupportedError, match="bare"):
        fim_prompt(Prompt("", ""), TOKENIZER, spec, 100)


def test_an_open_canvas_is_all_masks():
    block = open_canvas(token_ids([3, 2, 4]), MASK_SPEC, 8, np.random.default_rng(0))
    assert block.prompt_ids.tolist() == [3, 2, 4]
    assert block.canvas_ids.tolist() == [MASK_ID] * 8
    assert not block.frozen.any()


def test_frozen_flags_of_another_length_are_refused():
    with pytest.raises(ValueError, match="frozen"):
        Canvas(token_ids([]), token_ids([1, 2]), np.zeros(3, bool))


START = 1
PREFIX_FIRST = replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, order=FimOrder.PREFIX_FIRST), start_ids=(START,))
PREFIX_ONLY = replace(MASK_SPEC, fim=None, prompt_format=PromptFormat.PREFIX)


def ids_of(text):
    return TOKENIZER.encode(text).tolist()


def test_prefix_first_order_begins_with_the_start_token():
    ids = fim_prompt(Prompt("ab", "yz"), TOKENIZER, PREFIX_FIRST, 100).tolist()
    assert ids == [START, PREFIX_ID, *ids_of("ab"), SUFFIX_ID, *ids_of("yz"), MIDDLE_ID]


def test_a_model_without_sentinels_gets_the_prefix_only():
    assert fim_prompt(Prompt("ab", "yz"), TOKENIZER, PREFIX_ONLY, 100).tolist() == ids_of("ab")


def test_a_prefix_prompt_of_an_empty_buffer_is_a_line_end():
    assert fim_prompt(Prompt("", "yz"), TOKENIZER, PREFIX_ONLY, 100).tolist() == ids_of("\n")


@pytest.mark.parametrize("spec", [MASK_SPEC, PREFIX_FIRST, PREFIX_ONLY], ids=["suffix first", "prefix first", "prefix"])
@pytest.mark.parametrize(("prefix", "suffix"), [("ab", "yz"), ("a" * 90, "y" * 90), ("a", "")])
def test_a_prompt_fits_and_its_parts_can_be_recovered(spec, prefix, suffix):
    ids = fim_prompt(Prompt(prefix, suffix), TOKENIZER, spec, 50)
    assert len(ids) <= 50
    before, after = (TOKENIZER.decode(part).decode() for part in prompt_parts(ids, spec))
    assert prefix.endswith(before)
    assert before
    assert suffix.startswith(after)
    assert bool(after) == bool(suffix and spec.fim)


EVERY = replace(
    MASK_SPEC,
    template="gemma4",
    expectations=(ExpectedPasses("block", DecoderName.DIFFUSION, 0.0, 0.0, 3.0, 0.5),),
    name="able",
)


def test_an_empty_format_name_keeps_the_format_of_the_model():
    assert in_format(EVERY, "") == EVERY
    assert in_format(EVERY, "fim") == EVERY


@pytest.mark.parametrize("name", [name for name in PromptFormat if name != "fim"])
def test_another_format_drops_the_expectations_of_the_own_one(name):
    spec = in_format(EVERY, name.value)
    assert spec.prompt_format is name
    assert spec.expectations == ()
    assert spec.has_causal_head is (name is not PromptFormat.INFILL)


@pytest.mark.parametrize(
    ("lacking", "name", "message"),
    [
        (replace(EVERY, fim=None), "fim", "no fill-in-the-middle tokens.* choose infill, prefix, instruct"),
        (replace(EVERY, template=""), "instruct", "no known chat template.* choose fim, infill, prefix"),
        (replace(EVERY, sampling=None, canvas_lengths=()), "infill", "no canvas.* choose fim, prefix, instruct"),
    ],
)
def test_an_impossible_format_is_refused_with_the_possible_ones(lacking, name, message):
    with pytest.raises(RequestError, match=f"able has {message}"):
        in_format(lacking, name)


def test_other_formats_of_an_instruct_model_begin_with_its_start_token(monkeypatch):
    tokenizer = ByteTokenizer()
    monkeypatch.setattr(ByteTokenizer, "special", lambda _, spelling: 3 if spelling == "<bos>" else None)
    prompt = Prompt("a = 1\nb = ", "\nc")
    for name in ("infill", "prefix"):
        assert layout_of(prompt, tokenizer, in_format(EVERY, name), 100).prompt_ids[0] == 3
        plain = in_format(replace(EVERY, template=""), name)
        assert layout_of(prompt, tokenizer, plain, 100).prompt_ids[0] == tokenizer.encode("a")[0]


def test_a_layout_follows_the_prompt_format():
    tokenizer = ByteTokenizer()
    prompt = Prompt("a = 1\nb = ", "\nc")
    encode = tokenizer.encode

    def laid_out(name):
        return layout_of(prompt, tokenizer, in_format(EVERY, name), 100)

    fim = laid_out("fim")
    parts = [SUFFIX_ID, *encode("\nc").tolist(), PREFIX_ID, *encode("a = 1\nb = ").tolist(), MIDDLE_ID]
    assert fim.prompt_ids.tolist() == parts
    assert tokenizer.decode(fim.before_ids) == b"a = 1\nb = "
    assert tokenizer.decode(fim.after_ids) == b"\nc"
    assert laid_out("prefix").prompt_ids.tolist() == encode("a = 1\nb = ").tolist()
    assert tokenizer.decode(laid_out("prefix").before_ids) == b"a = 1\nb = "
    assert tokenizer.decode(laid_out("infill").tail_ids) == b"\nc"


SEPARATOR_ID = 299
REPO_SPEC = replace(
    MASK_SPEC,
    start_ids=(298,),
    fim=FimTokens(
        *(PREFIX_ID, SUFFIX_ID, MIDDLE_ID, FimOrder.PREFIX_FIRST),
        file=(SEPARATOR_ID, "{path}\n{code}"),
        prompt_with_files=(
            *("{files}", SEPARATOR_ID, "{path}\n"),
            *(PREFIX_ID, "{prefix}", SUFFIX_ID, "{suffix}", MIDDLE_ID),
        ),
    ),
)
CHUNKS = (
    Snippet(SnippetSource.EDITS, "pkg/b.py", "b = 2\n"),
    Snippet(SnippetSource.IMPORTS, "pkg/a.py", "def a():\n    ..."),
)


def prompt(*chunks, share=0.5, language="python"):
    return Prompt("x = ", "\n", path="pkg/x.py", language=language, snippets=Snippets(chunks, share))


def text_of(ids):
    return TOKENIZER.decode(token_ids(ids)).decode()


def test_a_prompt_without_snippets_is_unchanged():
    assert len(snippet_ids(prompt(), TOKENIZER, MASK_SPEC, 1000)) == 0
    assert (
        fim_prompt(prompt(), TOKENIZER, MASK_SPEC, 1000).tolist()
        == fim_prompt(Prompt("x = ", "\n"), TOKENIZER, MASK_SPEC, 1000).tolist()
    )


def test_snippets_with_their_paths_come_right_before_the_prefix():
    ids = fim_prompt(prompt(*CHUNKS), TOKENIZER, MASK_SPEC, 1000).tolist()
    assert (ids[0], ids[-1]) == (SUFFIX_ID, MIDDLE_ID)
    middle = ids.index(PREFIX_ID)
    assert text_of(ids[1:middle]) == "\n"
    assert text_of(ids[middle + 1 : -1]) == "# pkg/a.py\ndef a():\n    ...\n# pkg/b.py\nb = 2\n# pkg/x.py\nx = "


def test_snippets_precede_the_sentinels_of_a_model_with_a_file_separator():
    ids = fim_prompt(prompt(*CHUNKS), TOKENIZER, REPO_SPEC, 1000).tolist()
    begin = ids.index(PREFIX_ID)
    marks = [at for at in range(begin) if ids[at] == SEPARATOR_ID]
    assert (ids[0], marks[0], len(marks)) == (298, 1, 3)
    files = [text_of(ids[a + 1 : b]) for a, b in pairwise([*marks, begin])]
    assert files == ["pkg/a.py\ndef a():\n    ...\n", "pkg/b.py\nb = 2\n", "pkg/x.py\n"]
    assert text_of(ids[begin : ids.index(SUFFIX_ID)]) == "x = "


@pytest.mark.parametrize("spec", [MASK_SPEC, REPO_SPEC], ids=["inside", "before"])
def test_text_before_the_cursor_includes_the_snippets(spec):
    layout = fim_layout(prompt(*CHUNKS), TOKENIZER, spec, 1000)
    assert text_of(layout.before_ids).endswith("pkg/x.py\nx = ")
    assert text_of(layout.before_ids).count("def a()") == 1
    assert text_of(layout.after_ids) == "\n"


def test_important_snippets_come_first_and_long_ones_are_cut_at_a_line_end():
    long = Snippet(SnippetSource.OPEN_FILES, "pkg/long.py", "\n".join(f"line_{i} = {i}" for i in range(40)))
    shown = text_of(snippet_ids(prompt(long, *CHUNKS, share=0.25), TOKENIZER, MASK_SPEC, 800))
    assert len(shown) <= 200
    assert "def a()" in shown
    assert "b = 2" in shown
    kept = [line for line in shown.split("\n") if line.startswith("line_")]
    assert kept == [f"line_{i} = {i}" for i in range(len(kept))]
    assert kept


def test_the_most_important_snippet_of_a_source_is_nearest_to_the_code():
    one, two = Snippet(SnippetSource.OPEN_FILES, "one", "1"), Snippet(SnippetSource.OPEN_FILES, "two", "2")
    shown = text_of(snippet_ids(prompt(one, two), TOKENIZER, MASK_SPEC, 1000))
    assert shown.index("two") < shown.index("one")


def test_without_room_neither_snippet_nor_path_is_shown():
    assert len(snippet_ids(prompt(*CHUNKS, share=0.02), TOKENIZER, MASK_SPEC, 500)) == 0


@pytest.mark.parametrize("format_", [PromptFormat.FIM, PromptFormat.PREFIX, PromptFormat.INFILL])
@pytest.mark.parametrize("max_tokens", [8, 40, 100, 400])
def test_no_prompt_exceeds_its_limit(format_, max_tokens):
    spec = replace(MASK_SPEC, prompt_format=format_)
    given = replace(prompt(*CHUNKS), prefix="value = compute()\n" * 60, suffix="more()\n" * 60)
    assert len(layout_of(given, TOKENIZER, spec, max_tokens).prompt_ids) <= max_tokens


def test_infill_and_prefix_prompts_begin_with_snippets():
    for format_ in (PromptFormat.PREFIX, PromptFormat.INFILL):
        layout = layout_of(prompt(*CHUNKS), TOKENIZER, replace(MASK_SPEC, prompt_format=format_), 1000)
        assert text_of(layout.prompt_ids).startswith("# pkg/a.py\ndef a():")


def test_paths_are_comments_of_the_language():
    assert text_of(snippet_ids(prompt(*CHUNKS, language="go"), TOKENIZER, MASK_SPEC, 1000)).startswith("// pkg/a.py\n")


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
def test_snippets_depend_on_the_setting_and_on_the_training(spec, when, expected):
    assert takes_snippets(spec, when) is expected


def test_only_the_part_of_a_huge_snippet_that_may_fit_is_tokenized():
    class Counting(ByteTokenizer):
        num_chars = 0

        def encode(self, text):
            self.num_chars += len(text)
            return super().encode(text)

    tokenizer = Counting()
    lines = "\n".join(f"value_{number} = {number}" for number in range(300_000))
    ids = snippet_ids(prompt(Snippet(SnippetSource.GIVEN, "a.py", lines)), tokenizer, MASK_SPEC, 1000)
    assert text_of(ids).startswith("# a.py\nvalue_0 = 0\nvalue_1 = 1\n")
    assert 400 < len(ids) <= 500
    assert tokenizer.num_chars < 200_000
    assert (
        len(snippet_ids(prompt(Snippet(SnippetSource.GIVEN, "a.py", "x" * 5_000_000)), tokenizer, MASK_SPEC, 1000)) == 0
    )
