import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.languages import LANGUAGES, PLAIN, grammar_of, language_of
from dg_lsp.postprocess.syntax import REACH, Surroundings

PYTHON = language_of("python")
SAME = "the fill itself"


def surroundings_of(marked):
    before, _, after = marked.partition("|")
    return Surroundings.of(before, after, PYTHON)


@pytest.mark.parametrize(
    ("marked", "fill", "kept"),
    [
        pytest.param("|", "import os", SAME, id="an empty file"),
        pytest.param("|", "x = = 1", None, id="an empty file, and nonsense"),
        pytest.param("x = |\n", "1", SAME, id="the end of an unfinished line"),
        pytest.param("x = |\n", "1 2", None, id="what no ending could save"),
        pytest.param("x = |\n", "1 +", None, id="less finished than it could be"),
        pytest.param("x = f(|)\n", "1, 2", SAME, id="between brackets"),
        pytest.param("x = f(|)\n", "1, 2)", None, id="one bracket too many"),
        pytest.param("x = 1\n|\ny = 2\n", "if x y:", None, id="a sound buffer stays sound"),
        pytest.param("x = 1|\ny = 2\n", " + 2", SAME, id="a sound line grows"),
        pytest.param("x = 1|\ny = 2\n", " 2", None, id="a sound line breaks"),
    ],
)
def test_what_adds_an_error_is_refused(marked, fill, kept):
    assert surroundings_of(marked).keep_valid(fill) == (fill if kept is SAME else kept)


@pytest.mark.parametrize(
    ("marked", "fill", "kept"),
    [
        pytest.param("def f(|", "a, b):", SAME, id="a header is finished"),
        pytest.param("def f(|", "a, b", SAME, id="a header goes on"),
        pytest.param("def f(|", "a b):", None, id="a header goes wrong"),
        pytest.param("for |\n", "x in y", SAME, id="the colon may still come"),
        pytest.param("for |\n", "x y", None, id="a loop goes wrong"),
        pytest.param(
            "class A:\n    @|\n\n    x = 1\n", "property", SAME, id="the method of a decorator may still come"
        ),
        pytest.param(
            "@|\ndef f():\n    pass\n\ndef g():\n    pass\n", "cache", SAME, id="a decorator with its function"
        ),
        pytest.param("from |\n", "os", SAME, id="the import may still come"),
        pytest.param("x = a if |\n", "b", SAME, id="the else may still come"),
        pytest.param("print('hello |\n", "world", SAME, id="a string that the user opened"),
        pytest.param("x = f(\n    a,\n    |\n", "b,", SAME, id="a bracket that the user opened above"),
        pytest.param("x = {|\n", "'a': 1,", SAME, id="or on the line"),
        pytest.param("x = f(\n    a,\n    |\n", "b,\n)", SAME, id="the end of a bracket that the user opened above"),
        pytest.param("if x|\n    a\nelse:\n    b\n", " > 0:", SAME, id="a header in the middle of a statement"),
        pytest.param("try:\n    a\n|\n", "except E:\n    pass", SAME, id="a clause on its own lines"),
        pytest.param("match x:\n    case |\n", "1:", SAME, id="a case"),
        pytest.param("match x:\n    |\n", "case {'a': [b, *_]}:\n        pass", SAME, id="a pattern"),
    ],
)
def test_an_unfinished_buffer_is_the_normal_state(marked, fill, kept):
    assert surroundings_of(marked).keep_valid(fill) == (fill if kept is SAME else kept)


@pytest.mark.parametrize(
    ("marked", "fill", "kept"),
    [
        pytest.param("x = [1, 2\n\ndef g():\n    return |\n", "1 + h(2)", SAME, id="a bracket left open far above"),
        pytest.param("x = [1, 2\n\ndef g():\n    return |\n", "1 1", None, id="and nonsense"),
        pytest.param("def g():\n    return |\n\ndef h(:\n    pass\n", "f(1)", SAME, id="a function broken below"),
        pytest.param(
            "def g():\n    y = [1, 2\n    return |\n", "f(a) + h(b)", SAME, id="a bracket left open right above"
        ),
        pytest.param(
            "def g():\n    h(a, b\n    x = 1\n    |\n    return x\n",
            "for i in x:\n        y",
            SAME,
            id="a block below it",
        ),
        pytest.param("def g():\n    y = = 1\n    return |\n", "f(1)", SAME, id="a line broken above"),
        pytest.param("def g():\n    y = = 1\n    return |\n", "f(1))", None, id="and one bracket too many"),
        pytest.param("def g():\n    y = = 1\n    if x:\n        z\n    |\n", "else:", SAME, id="a clause beside it"),
    ],
)
def test_a_file_that_is_broken_elsewhere_refuses_nothing_sound(marked, fill, kept):
    assert surroundings_of(marked).keep_valid(fill) == (fill if kept is SAME else kept)


@pytest.mark.parametrize(
    ("marked", "fill", "kept"),
    [
        pytest.param("# foo |\nx = 1\n", "bar ( baz '", SAME, id="a comment"),
        pytest.param("x = 'foo |'\n", "bar ( baz", SAME, id="a string"),
        pytest.param("x = 'foo |'\n", "it's", None, id="the end of a string"),
        pytest.param("def f():\n    '''Foo |\n    '''\n", "bar ( it's", SAME, id="a docstring"),
        pytest.param("x = f'{|}'\n", "a + 1", SAME, id="a hole in an f-string"),
        pytest.param("x = f'{|}'\n", "a + ", None, id="an unfinished hole in an f-string"),
        pytest.param("x = f'{|'\n", "a}", SAME, id="the end of a hole in an f-string"),
    ],
)
def test_text_in_code(marked, fill, kept):
    assert surroundings_of(marked).keep_valid(fill) == (fill if kept is SAME else kept)


@pytest.mark.parametrize(
    ("marked", "fill", "kept"),
    [
        pytest.param("x = |\n", "f(1", "f(1)", id="a bracket"),
        pytest.param("x = f(|)\n", "g(1", "g(1)", id="one that the rest of the line would close for another"),
        pytest.param("x = |\n", "f([1, {2", "f([1, {2}])", id="several brackets"),
        pytest.param("x = |\n", "f(1,", None, id="not after a comma: more was to come"),
        pytest.param("x = |\n", "f('a", None, id="not around half a string"),
        pytest.param(
            "def f():\n    |\n", "return g(\n        a,\n        b", "return g(\n        a,\n        b)", id="lines"
        ),
        pytest.param(
            "def f():\n    |\n", "x = 1\n    y = f(\n        a,", "x = 1", id="lines before an unfinished one"
        ),
        pytest.param("def f():\n    |\n", "x = 1\n    y = = 2\n    z", "x = 1", id="lines before a wrong one"),
        pytest.param(
            "def f():\n    |\n", '"""Foo.\n\n    Bar', '"""Foo."""', id="the summary of an unfinished docstring"
        ),
        pytest.param("def f():\n    '''|\n", "Foo.", SAME, id="not a docstring that the user opened"),
    ],
)
def test_the_nearest_sound_thing_is_kept(marked, fill, kept):
    assert surroundings_of(marked).keep_valid(fill) == (fill if kept is SAME else kept)


def functions(num):
    return "".join(f"@cache\ndef f{i}(x):\n    return x + {i}\n\n\n" for i in range(num))


def test_only_the_neighbourhood_is_parsed():
    around = surroundings_of(functions(500) + "def g(x):\n    return |\n\n\n" + functions(500))
    assert around.above == "def g(x):\n"
    assert around.below == "\n\n\n@cache\ndef f0(x):\n    return x + 0\n\n\n"


def test_a_long_class_is_parsed_from_method_to_method():
    methods = "".join(f"    @cache\n    def f{i}(self):\n        return {i}\n\n" for i in range(1000))
    around = surroundings_of(f"class A:\n{methods}    def g(self):\n        return |\n\n{methods}")
    assert around.above.startswith("    def f")
    assert around.below.endswith("\n\n")
    assert len(around.above) <= REACH
    assert around.keep_valid("1 + 1") == "1 + 1"
    assert around.keep_valid("1 1") is None


def test_a_giant_line_has_nothing_below():
    around = surroundings_of("def f():\n    x = [|" + "1, " * REACH + "]\n\ny = 1\n")
    assert (around.above, around.below) == ("def f():\n", "")
    assert around.keep_valid("0, ") == "0, "


SOUND = """class A:
    def f(self, x: int, *, y: str = "(") -> dict[str, list[int]]:
        '''It's a docstring.'''
        for i in range(x):
            if i % 2 and (x or y):
                print(f"{i!r:>{x}} {y['a']}", end="")
            else:
                continue
        with open(y) as file, self.g(1):
            data = {k: [v, *self.h(v)] for k, v in file.items() if v}
        return data  # a comment (
"""


@given(st.integers(0, len(SOUND)), st.integers(0, len(SOUND)))
def test_whatever_is_cut_out_of_sound_code_may_come_back(one, other):
    start, end = sorted((one, other))
    around = Surroundings.of(SOUND[:start], SOUND[end:], PYTHON)
    assert around.keep_valid(SOUND[start:end]) == SOUND[start:end]


@pytest.mark.parametrize(
    ("before", "after", "language"),
    [
        pytest.param("x = ", "", PLAIN, id="unknown language"),
        pytest.param("prose, it's (\n" * 1000, "more prose\n" * 1000, PYTHON, id="far from any landmark"),
        pytest.param("x = [" + "1, " * 1_000_000, "]", PYTHON, id="giant line"),
    ],
)
def test_other_text_is_not_checked(before, after, language):
    assert Surroundings.of(before, after, language) is None


def test_unknown_languages_are_plain_text_and_every_grammar_loads():
    assert language_of("brainfuck") is PLAIN
    assert all(grammar_of(language.grammar_module) for language in LANGUAGES.values())
