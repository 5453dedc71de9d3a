"""Prompts of edit models beside published ones, and what becomes of their answers."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import MASK_SPEC

from dg_lsp.canvas.edit_prompt import BYTES_PER_TOKEN, EDIT_FORMATS, JOINED_LINES, edit_format_of, edit_prompt
from dg_lsp.context.document import LineIndex
from dg_lsp.context.edit_history import Edit
from dg_lsp.context.window import Snippet, SnippetSource
from dg_lsp.errors import RequestError

PUBLISHED = Path(__file__).parent / "edit_prompts"
FORMATS = list(EDIT_FORMATS.values())
CODE = "def area(width):\n    return width\n\n\nprint(area(2))\n"
EDIT = Edit(0, "", "def area(w):\n", "def area(width):\n", "    return width\n")
ARTICLE = """\
from dataclasses import dataclass


@dataclass
class Article:
    title: str
    tags: list[str]


def render_header(article: Article) -> str:
    lines = [f"# {article.title}"]
    if article.tags:
        lines.append(f"Tags: {article.tags.lower()}")
    return "\\n".join(lines)


def search_by_tag(articles: list[Article], tag: str) -> list[Article]:
    return [a for a in articles if a.tags == tag]"""
TAGS = Edit(0, "", "    tags: str\n", "    tags: list[str]\n", "")


def prompt_of(name, document, at, edits=(), *, path="a.py", files=(), **window):
    """The prompt with the cursor before the first copy of a text; `window` replaces fields of the format."""
    form = replace(EDIT_FORMATS[name], **window)
    return edit_prompt(form, LineIndex.of(document), document.index(at), edits, path, files)


def one_line(lines_above=0, lines_below=0):
    return {"editable_tokens": 0, "lines_above": lines_above, "lines_below": lines_below}


CONTEXT = Snippet(SnippetSource.OPEN_FILES, "src/context.rs", "context\n")
RUST = "// prefix\nfn foo() {\n    let x = 1;\n}\n// suffix\n"
SWEEP_EDIT = Edit(0, "", "old", "new", "")
AREA = "def area(w, h):\n    return w * h\n\nprint(area(2))\n"
AREA_EDIT = Edit(0, "", "def area(w):\n", "def area(w, h):\n", "")
LINES = "line 0\nline 1\nline 2\nline 3\nline 4"
LOG_EDIT = Edit(1, "function test() {\n", '  console.log("old");\n', '  console.log("new");\n', "}\n")


@pytest.mark.parametrize(
    ("file", "prompt"),
    [
        ("zeta", prompt_of("zeta", RUST, "let", path="test.rs", **one_line(1, 1))),
        ("zeta-2", prompt_of("zeta-2", "before\nmiddle\nafter", "dle", path="test.rs", **one_line())),
        ("zeta-2.1", prompt_of("zeta-2.1", "prefix\neditable\nsuffix", "table", path="test.rs", **one_line())),
        ("sweep-v2", prompt_of("sweep-v2", AREA, "2))", [AREA_EDIT])),
        ("instinct", prompt_of("instinct", LINES, " 2", [LOG_EDIT], path="test.js", lines_below=1)),
        ("zeta-2-recorded", prompt_of("zeta-2", ARTICLE, '"Tags', [TAGS], path="article.py")),
        ("mercury-recorded", prompt_of("mercury", ARTICLE, '"Tags', [TAGS], path="article.py", editable_tokens=350)),
        ("sweep", prompt_of("sweep", "current window", "current", [SWEEP_EDIT], path="src/main.rs", files=[CONTEXT])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_prompt_is_the_published_one_byte_for_byte(file, prompt):
    published = (PUBLISHED / f"{file}.txt").read_text(encoding="utf-8")
    assert prompt.text == published.replace("old window", "current window")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("zeta-2.1-Q4_K_M", "zeta-2.1"),
        ("Zed Industries Zeta 2", "zeta-2"),
        ("zed-industries_zeta-Q8_0", "zeta"),
        ("sweepai/sweep-next-edit-v2-7B", "sweep-v2"),
        ("sweep-next-edit-7B@127.0.0.1", "sweep-v2"),
        ("sweep-next-edit-1.5b.q8_0.v2", "sweep"),
        ("instinct", "instinct"),
        ("qwen2.5-coder-7b", None),
        ("dg-base", None),
        ("zetamax", None),
    ],
)
def test_an_edit_model_is_recognised_by_its_name(model, name):
    form = edit_format_of(replace(MASK_SPEC, name=model))
    assert (form.name if form else None) == name


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "document", ["", "\n", "x", "x = 1\n", "\ufeffx = 1\n", "x\r\ny\r\n", "s = '😀'\n\tx = 2", "a\r\nb\nc\rd"]
)
def test_every_document_has_a_prompt_at_every_position(form, document):
    lines = LineIndex.of(document)
    for offset in range(len(document) + 1):
        prompt = edit_prompt(form, lines, offset, [], "a.py")
        shown = document[prompt.start : prompt.end].replace("\r\n", "\n").replace("\r", "\n")
        assert prompt.region == shown
        assert prompt.text.count(form.cursor or prompt.text) >= 1
        assert "\r" not in prompt.text
        assert "\ufeff" not in prompt.text


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_mark_in_the_code_is_refused_and_named(form):
    for mark in form.marks:
        with pytest.raises(RequestError, match="uses as a mark"):
            edit_prompt(form, LineIndex.of(f"x = 1\n{mark.strip()}\n"), 0, [], "a.py")
        edit = replace(EDIT, old=f"{mark.strip()}\n")
        with pytest.raises(RequestError, match="uses as a mark"):
            edit_prompt(form, LineIndex.of("x = 1\n"), 0, [edit], "a.py")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_the_oldest_edits_are_left_out_of_a_long_prompt(form):
    edits = [
        replace(EDIT, old=f"old_{number} = {'x' * 5000}\n", new=f"new_{number}\n") for number in range(form.num_edits)
    ]
    prompt = edit_prompt(replace(form, max_prompt_tokens=3900), LineIndex.of(CODE), 0, edits, "a.py")
    assert "new_0" in prompt.text
    assert f"new_{form.num_edits - 1}" not in prompt.text


def test_fewer_lines_are_shown_around_the_cursor_where_prompt_and_answer_would_not_fit_the_context():
    document = "".join(f"x{number} = {number}\n" for number in range(400))
    form = EDIT_FORMATS["sweep-v2"]
    whole, short = (edit_prompt(form, LineIndex.of(document), 2000, [], "a.py", (), limit) for limit in (0, 600))
    assert len(short.text) / BYTES_PER_TOKEN + short.max_tokens <= 600 < len(whole.text) / BYTES_PER_TOKEN
    assert short.region == whole.region


def test_a_mark_that_is_a_line_may_stand_inside_a_line():
    assert "x =======" in prompt_of("zeta-2", "x =======\n", "x").text


def test_an_accepted_edit_is_marked_where_the_format_does_so():
    accepted = replace(EDIT, is_accepted=True)
    assert "// User accepted prediction:\n--- a/a.py\n" in prompt_of("zeta-2", CODE, "print", [accepted, EDIT]).text
    assert "accepted" not in prompt_of("sweep", CODE, "print", [accepted]).text


def test_the_lines_above_the_cursor_are_prefilled_unless_a_line_above_grew():
    assert prompt_of("sweep-v2", CODE, "print").prefill == "def area(width):\n    return width\n\n\n"
    assert prompt_of("sweep-v2", CODE, "print", [EDIT]).prefill == "def area(width):\n"


def test_sweep_sees_the_lines_before_the_newest_edit():
    prompt = prompt_of("sweep", CODE, "print", [EDIT])
    original = prompt.text.partition("<|file_sep|>original/a.py\n")[2].partition("<|file_sep|>current")[0]
    assert original == CODE.replace("def area(width)", "def area(w)").rstrip("\n") + "\n"


def test_blocks_begin_after_blank_lines_but_with_no_end_of_a_body_and_have_six_to_sixteen_lines():
    lines = [*(f"a{n}" for n in range(7)), "", *(f"b{n}" for n in range(16)), "}", "c", "d"]
    prompt = prompt_of("zeta-2.1", "\n".join(lines), "a0")
    numbers = [prompt.text.index(f"<|marker_{number}|>{text}") for number, text in ((2, "b0"), (3, "c"))]
    assert numbers == sorted(numbers)
    assert "<|marker_5|>" not in prompt.text


# answers


def answered(name, answer, *, document=CODE, at="print", unfinished=0):
    """The document's lines after the answer."""
    return prompt_of(name, document, at).edited_region(answer, unfinished=unfinished)


CHANGED = CODE.replace("print(area(2))", "print(area(width=2))").rstrip("\n")
BELOW = CHANGED.rpartition("\n")[2]


@pytest.mark.parametrize(
    ("name", "answer", "region"),
    [
        ("zeta", f"<|editable_region_start|>\n{CHANGED}\n<|editable_region_end|>\n```", CHANGED),
        ("zeta", CHANGED.replace("width=2", "width=2<|user_cursor_is_here|>"), CHANGED),
        ("zeta-2", f"{CHANGED}\n>>>>>>> UPDATED\nmore", CHANGED),
        ("zeta-2", CHANGED + "\n", CHANGED),
        ("zeta-2.1", f"<|marker_1|>{CHANGED}<|marker_2|><[end▁of▁sentence]>", CHANGED),
        ("zeta-2.1", f"<|marker_1|>{CHANGED}\n<|user_cursor|><|marker_2|>", CHANGED),
        ("sweep", f"{CHANGED}\n<|file_sep|>b.py", CHANGED),
        ("sweep-v2", f"{BELOW}\n\n<|endoftext|>", CHANGED),
        ("mercury", f"```\n{CHANGED}\n```", CHANGED),
        ("instinct", f"\n{BELOW}\n", f"\n{BELOW}"),
        ("zeta", CODE, None),
        ("zeta", "", None),
        ("zeta", "  \n", None),
        ("zeta", "x = 1 <|start_of_file|>", None),
        ("zeta-2", "NO_EDITS\n>>>>>>> UPDATED\n", None),
        ("zeta-2", "x\n<<<<<<< CURRENT\ny", None),
        ("zeta-2.1", "<|marker_1|><|marker_1|>", None),
        ("zeta-2.1", "<|marker_2|>ignored<|marker_2|>", None),
        ("zeta-2.1", "<|marker_1|>x<|marker_9|>", None),
        ("zeta-2.1", "<|marker_2|>x<|marker_1|>", None),
        ("zeta-2.1", "no marker", None),
        ("zeta-2.1", "before<|marker_1|>x<|marker_2|>", None),
        ("sweep", "x = 1 <|im_start|>", None),
        ("sweep-v2", "print(area(2))\n", None),
        ("sweep-v2", "", None),
        ("mercury", "None", None),
    ],
)
def test_an_answer_is_read_or_gives_nothing_if_it_changes_nothing_or_cannot_be_read(name, answer, region):
    assert answered(name, answer) == region


def test_markers_replace_only_the_blocks_that_they_name():
    lines = [*(f"a{n}" for n in range(7)), "", *(f"b{n}" for n in range(7))]
    document = "\n".join(lines)
    answer = "<|marker_2|>" + "\n".join([*lines[8:], "new"]) + "<|marker_3|>"
    assert answered("zeta-2.1", answer, document=document, at="a0") == document + "\nnew"


def test_an_answer_that_joins_the_unchanged_lines_is_cut_there():
    lines = [f"x{n} = {n}" for n in range(20)]
    answer = "\n".join(["x0 = 1", *lines[1 : JOINED_LINES + 1], "nonsense"])
    assert answered("sweep", answer, document="\n".join(lines), at="x0") == "\n".join(["x0 = 1", *lines[1:11]])


def test_an_unfinished_answer_counts_only_where_it_joins_the_unchanged_lines():
    lines = [f"x{n} = {n}" for n in range(8)]
    document = "\n".join(lines)
    changed = "\n".join(["x0 = 1", *lines[1:]])
    for name in ("sweep", "zeta-2"):
        assert answered(name, "x0 = 1\nx1 = 1\nx2 = 2\nx3 =", document=document, at="x0", unfinished=2) == changed
        assert answered(name, "x0 = 1\nx9 = 9\nx8", document=document, at="x0", unfinished=2) is None
        assert answered(name, "x0 = 0\nx1 = 1\nx2 = 2\nx", document=document, at="x0", unfinished=2) is None
    marked = "<|marker_1|>x0 = 1\nx1 = 1\nx2 = 2\nx3"
    assert answered("zeta-2.1", marked, document=document, at="x0", unfinished=2) == changed


@given(st.text(st.sampled_from("ab \n\t😀<|>"), max_size=60), st.sampled_from(FORMATS), st.integers(0, 2))
def test_no_answer_brings_a_mark_into_the_code(answer, form, unfinished):
    prompt = edit_prompt(form, LineIndex.of(CODE), 5, [], "a.py")
    for mark in form.marks:
        region = prompt.edited_region(answer + mark + answer, unfinished=unfinished)
        assert region is None or not form.mark_in(region)
