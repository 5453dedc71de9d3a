import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import REACH
from dg_lsp.context.languages import PLAIN, language_of
from dg_lsp.postprocess.syntax import Surroundings

PYTHON = language_of("python")
SAME = "the fill itself"


def surroundings_of(marked):
    before, _, after = marked.partition("|")
    return Surroundings.of(before, after, PYTHON)


@pytest.mark.parametrize(
    ("marked", "fill", "kept"),
    [
        # text that adds an error is refused
        pytest.param("|", "import os", SAME, id="an empty file"),
        pytest.param("x = |\n", "1", SAME, id="the end of an unfinished line"),
        pytest.param("x = |\n", "1 2", None, id="invalid with every ending"),
        pytest.param("x = |\n", "1 +", None, id="an operator without its operand"),
        pytest.param("x = f(|)\n", "1, 2", SAME, id="between brackets"),
        pytest.param("x = f(|)\n", "1, 2)", None, id="one bracket too many"),
        pytest.param("x = 1\n|\ny = 2\n", "if x y:", None, id="a statement between valid lines"),
        pytest.param("x = 1|\ny = 2\n", " + 2", SAME, id="a valid line grows"),
        pytest.param("x = 1|\ny = 2\n", " 2", None, id="a valid line becomes invalid"),
        # the buffer is unfinished at the cursor, as usual
        pytest.param("def f(|", "a, b):", SAME, id="the end of a header"),
        pytest.param("def f(|", "a b):", None, id="an error in a header"),
        pytest.param("for |\n", "x in y", SAME, id="a loop, its colon may follow"),
        pytest.param("for |\n", "x y", None, id="an error in a loop"),
        pytest.param("class A:\n    @|\n\n    x = 1\n", "property", SAME, id="a decorator, its method may follow"),
        pytest.param("from |\n", "os", SAME, id="a from, its import may follow"),
        pytest.param("x = a if |\n", "b", SAME, id="a condition, its else may follow"),
        pytest.param("print('hello |\n", "world", SAME, id="in an open string"),
        pytest.param("x = f(\n    a,\n    |\n", "b,", SAME, id="in a bracket opened above"),
        pytest.param("if x|\n    a\nelse:\n    b\n", " > 0:", SAME, id="a header in the middle of a statement"),
        pytest.param("try:\n    a\n|\n", "except E:\n    pass", SAME, id="a clause below its statement"),
        pytest.param("match x:\n    |\n", "case {'a': [b, *_]}:\n        pass", SAME, id="a pattern"),
        # the file has an error elsewhere
        pytest.param("x = [1, 2\n\ndef g():\n    return |\n", "1 + h(2)", SAME, id="a bracket is open far above"),
        pytest.param("def g():\n    return |\n\ndef h(:\n    pass\n", "f(1)", SAME, id="an error in a function below"),
        pytest.param("def g():\n    y = [1, 2\n    return |\n", "f(a) + h(b)", SAME, id="a bracket is open above"),
        pytest.param("def g():\n    h(a, b\n    |\n    return x\n", "for i in x:\n        y", SAME, id="a block"),
        pytest.param("def g():\n    y = = 1\n    return |\n", "f(1)", SAME, id="an error in a line above"),
        pytest.param("def g():\n    y = = 1\n    return |\n", "f(1))", None, id="one bracket too many, error above"),
        pytest.param("def g():\n    y = = 1\n    if x:\n        z\n    |\n", "else:", SAME, id="a clause"),
        # comments and strings
        pytest.param("# foo |\nx = 1\n", "bar ( baz '", SAME, id="a comment"),
        pytest.param("x = 'foo |'\n", "bar ( baz", SAME, id="a string"),
        pytest.param("x = 'foo |'\n", "it's", None, id="the end of a string"),
        pytest.param("def f():\n    '''Foo |\n    '''\n", "bar ( it's", SAME, id="a docstring"),
        pytest.param("x = f'{|}'\n", "a + 1", SAME, id="a field of an f-string"),
        pytest.param("x = f'{|}'\n", "a + ", None, id="an unfinished field of an f-string"),
        # the nearest valid text is kept
        pytest.param("x = |\n", "f(1", "f(1)", id="an open bracket is closed"),
        pytest.param("x = f(|)\n", "g(1", "g(1)", id="an open bracket is closed before one of the line"),
        pytest.param("x = |\n", "f([1, {2", "f([1, {2}])", id="several brackets are closed"),
        pytest.param("x = |\n", "f('a", None, id="not after an open string"),
        pytest.param("def f():\n    |\n", "return g(\n        a", "return g(\n        a)", id="a bracket above"),
        pytest.param("def f():\n    |\n", "x = 1\n    y = f(\n        a,", "x = 1", id="before an open bracket"),
        pytest.param("def f():\n    |\n", "x = 1\n    y = = 2\n    z", "x = 1", id="lines before an invalid one"),
        pytest.param("def f():\n    |\n", '"""Foo.\n\n    Bar', '"""Foo."""', id="an open docstring"),
        pytest.param("def f():\n    '''|\n", "Foo.", SAME, id="not of a docstring opened in the buffer"),
    ],
)
def test_a_fill_is_kept_as_far_as_it_adds_no_syntax_error(marked, fill, kept):
    assert surroundings_of(marked).keep_valid(fill) == (fill if kept is SAME else kept)


def functions(num):
    return "".join(f"@cache\ndef f{i}(x):\n    return x + {i}\n\n\n" for i in range(num))


def test_only_text_near_the_cursor_is_parsed():
    around = surroundings_of(functions(500) + "def g(x):\n    return |\n\n\n" + functions(500))
    assert around.excerpt.above == "def g(x):\n"
    assert around.excerpt.with_fill("").below == "\n\n\n@cache\ndef f0(x):\n    return x + 0\n\n\n"


def test_a_long_class_is_parsed_from_method_to_method():
    methods = "".join(f"    @cache\n    def f{i}(self):\n        return {i}\n\n" for i in range(1000))
    around = surroundings_of(f"class A:\n{methods}    def g(self):\n        return |\n\n{methods}")
    assert around.excerpt.above.startswith("    def f")
    assert around.excerpt.with_fill("").below.endswith("\n\n")
    assert len(around.excerpt.above) <= REACH
    assert around.keep_valid("1 + 1") == "1 + 1"
    assert around.keep_valid("1 1") is None


def test_nothing_below_a_giant_line_is_parsed():
    around = surroundings_of("def f():\n    x = [|" + "1, " * REACH + "]\n\ny = 1\n")
    assert (around.excerpt.above, around.excerpt.with_fill("").below) == ("def f():\n", "")
    assert around.keep_valid("0, ") == "0, "


VALID = """class A:
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


@given(st.integers(0, len(VALID)), st.integers(0, len(VALID)))
def test_text_cut_out_of_valid_code_is_valid_there(start, end):
    start, end = sorted((start, end))
    around = Surroundings.of(VALID[:start], VALID[end:], PYTHON)
    assert around.keep_valid(VALID[start:end]) == VALID[start:end]


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
