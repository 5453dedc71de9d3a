import pytest

from dg_lsp.context.document import Snapshot
from dg_lsp.context.edit_task import EditTask

DOCUMENTED = 'def f():\n    """One |line."""\n    return 1\n'


@pytest.mark.parametrize(
    ("text", "path", "language", "task"),
    [
        pytest.param("total = |\n", "a.py", "python", EditTask.LINE_END, id="text before the cursor"),
        pytest.param("if a:\n    b = 1\n    |\n    c = 2\n", "a.py", "python", EditTask.WHOLE_LINE, id="a blank line"),
        pytest.param("if a:\n    |\n", "a.py", "python", EditTask.BLOCK, id="below a colon"),
        pytest.param("if a:\n    |\n    b = 1\n", "a.py", "python", EditTask.WHOLE_LINE, id="the block has a line"),
        pytest.param("if (a) {\n  |\n}\n", "a.ts", "typescript", EditTask.BLOCK, id="below a brace"),
        pytest.param("a:\n|\n", "a.c", "c", EditTask.WHOLE_LINE, id="below a label, where a colon opens nothing"),
        pytest.param(DOCUMENTED, "a.py", "python", EditTask.DOCSTRING, id="a docstring"),
        pytest.param('def f():\n    """|', "a.py", "python", EditTask.DOCSTRING, id="a docstring that is begun"),
        pytest.param('r"""|x"""\n', "a.py", "python", EditTask.DOCSTRING, id="the docstring of a module"),
        pytest.param('q = """\nselect |a\n"""\n', "a.py", "python", EditTask.LINE_END, id="a string in an assignment"),
        pytest.param('run(\n    """\n  a |b"""\n)\n', "a.py", "python", EditTask.LINE_END, id="a string argument"),
        pytest.param("a = 1  # the |first\n", "a.py", "python", EditTask.DOCSTRING, id="a comment"),
        pytest.param('a = "#" + |\n', "a.py", "python", EditTask.LINE_END, id="a mark of a comment in a string"),
        pytest.param("/* the\n * |first */\n", "a.js", "javascript", EditTask.DOCSTRING, id="a block comment"),
        pytest.param("/* b */\na = |\n", "a.js", "javascript", EditTask.LINE_END, id="after a comment"),
        pytest.param("f('a/**/*.js')\nb = |\n", "a.js", "javascript", EditTask.LINE_END, id="a pattern of files"),
        pytest.param("a = `http://|`\n", "a.js", "javascript", EditTask.LINE_END, id="a mark in an open string"),
        pytest.param("a = [ $#| ]\n", "a.sh", "shellscript", EditTask.LINE_END, id="a mark that is none there"),
        pytest.param("# it's |\n", "a.py", "python", EditTask.DOCSTRING, id="an apostrophe in a comment"),
        pytest.param("a = |\n", "tests/helpers.py", "python", EditTask.TEST, id="a folder of tests"),
        pytest.param("a = |\n", "src/test_a.py", "python", EditTask.TEST, id="a test of pytest"),
        pytest.param("a = |\n", "src/a.spec.ts", "typescript", EditTask.TEST, id="a test of Jest"),
        pytest.param("a := |\n", "a_test.go", "go", EditTask.TEST, id="a test of Go"),
        pytest.param("a = |\n", "app/UserTest.java", "java", EditTask.TEST, id="a test of JUnit"),
        pytest.param("a = |\n", "src/contest.py", "python", EditTask.LINE_END, id="a name that ends with test"),
        pytest.param("a = |\n", "test/shop/src/shop/a.py", "python", EditTask.LINE_END, id="a distant folder"),
        pytest.param(DOCUMENTED, "tests/a.py", "python", EditTask.DOCSTRING, id="a docstring in a test"),
        pytest.param('{"a": |}\n', "a.json", "json", EditTask.STRUCTURED_TEXT, id="data"),
        pytest.param("a: 1 # |\n", "tests/a.yml", "dockercompose", EditTask.STRUCTURED_TEXT, id="data in a test"),
        pytest.param("a |\n", "a.unknown", "unknown", EditTask.LINE_END, id="an unknown language"),
    ],
)
def test_the_task_of_a_position(text, path, language, task):
    offset = text.index("|")
    snapshot = Snapshot(f"file:///{path}", text.replace("|", ""), language)
    assert EditTask.at(snapshot, offset) is task
