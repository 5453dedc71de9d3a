"""Imports of a buffer, outlines of files, and the index that connects them."""

from pathlib import Path

import pytest

from dg_lsp.server.workspace_index import (
    MAX_IMPORT_CHARS,
    MAX_MEMBERS,
    MAX_MODULES,
    MAX_NAMES,
    Import,
    WorkspaceIndex,
    imports_of,
    outline_of,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a\n", [Import("a", 0, "", "a")]),
        ("import a.b as c, d\n", [Import("a.b", 0, "", "c"), Import("d", 0, "", "d")]),
        ("from a.b import c as d, e\n", [Import("a.b", 0, "c", "d"), Import("a.b", 0, "e", "e")]),
        ("from . import a\n", [Import("", 1, "a", "a")]),
        ("from ..a import *\n", [Import("a", 2, "*", "*")]),
        ("from a import (  # why\n    b,\n    c,\n)\n", [Import("a", 0, "b", "b"), Import("a", 0, "c", "c")]),
        ("from a import b, \\\n    c\n", [Import("a", 0, "b", "b"), Import("a", 0, "c", "c")]),
        ("if X:\n    from a import b\n", [Import("a", 0, "b", "b")]),
        ("from a import b  # noqa\r\nimport c\r\n", [Import("a", 0, "b", "b"), Import("c", 0, "", "c")]),
        ("from a import (b,\n", []),
        ("from a import\nimport b\n", [Import("b", 0, "", "b")]),
        ("import a; x = 1\n", []),
        ("important = 1\nfrom_here = 2\n", []),
    ],
)
def test_imports_are_parsed_statement_by_statement(text, expected):
    assert list(imports_of(text)) == expected


def test_incomplete_code_hides_no_other_import():
    assert [one.name for one in imports_of("from a import b\n\ndef f(:\n  x = (\nfrom c import d\n")] == ["b", "d"]


def test_only_the_beginning_of_a_long_buffer_is_parsed():
    assert imports_of("#" * MAX_IMPORT_CHARS + "\nimport a\n") == ()


def definitions(text):
    return outline_of(text).definitions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("def f(a, *, b=1) -> int:\n    return a\n", {"f": "def f(a, *, b=1) -> int: ..."}, id="function"),
        pytest.param("async def f(): pass\n", {"f": "async def f(): ..."}, id="async"),
        pytest.param('def f():\n    """Says.\n\n    More."""\n', {"f": 'def f():\n    """Says."""'}, id="docstring"),
        pytest.param("@dec(1)\ndef f(): pass\n", {"f": "def f(): ..."}, id="decorated"),
        pytest.param(
            "def f(\n    a,  # why\n    b: int,\n): pass\n", {"f": "def f(a, b: int): ..."}, id="several lines"
        ),
        pytest.param("X: int = 3\nY = [\n  1,\n]\n", {"X": "X: int = 3", "Y": "Y = [ 1, ]"}, id="constants"),
        pytest.param("x.y = 1\na, b = c\nprint(1)\n", {}, id="no definitions"),
        pytest.param("class A(B): pass\n", {"A": "class A(B): ..."}, id="empty class"),
        pytest.param("def f(): pass\ndef f(a): pass\n", {"f": "def f(a): ..."}, id="the last definition of a name"),
        pytest.param("", {}, id="empty"),
        pytest.param("name = '\ud7ff'\n", {"name": "name = '\ud7ff'"}, id="not ASCII"),
    ],
)
def test_definitions_of_a_file(text, expected):
    assert definitions(text) == expected


def test_a_class_shows_its_public_members():
    text = (
        'class A:\n    """Holds."""\n    x: int = 1\n    def __init__(self, x): self.x = x\n'
        "    @property\n    def y(self): return 1\n    def _z(self): pass\n    print(1)\n"
    )
    shown = 'class A:\n    """Holds."""\n    x: int = 1\n    def __init__(self, x): ...\n    def y(self): ...'
    assert definitions(text) == {"A": shown}


def test_members_of_a_large_class_are_limited():
    text = "class A:\n" + "".join(f"    def m{i}(self): pass\n" for i in range(100))
    assert definitions(text)["A"].count("\n") == MAX_MEMBERS


def test_an_incomplete_file_has_its_complete_definitions():
    assert "f" in definitions("def f(a): pass\n\n\nclass B(\n")


class Tree:
    """Files in a dictionary that records reads."""

    def __init__(self, **texts):
        self.texts = {Path("/w") / name: text for name, text in texts.items()}
        self.versions = dict.fromkeys(self.texts, 0)
        self.reads = []

    def stamp(self, path):
        return self.versions.get(path)

    def text(self, path):
        self.reads.append(path.relative_to("/w").as_posix())
        return self.texts[path]

    def change(self, name, text):
        self.texts[Path("/w") / name] = text
        self.versions[Path("/w") / name] = self.versions.get(Path("/w") / name, 0) + 1


def tree(**texts):
    return Tree(**{name.replace("__", "/").replace("_INIT", "__init__") + ".py": text for name, text in texts.items()})


def found(files, text, path="/w/pkg/main.py", near=""):
    workspace = WorkspaceIndex([Path("/w")], files)
    definitions = workspace.definitions(Path(path), imports_of(text), near or text)
    return [(one.path.relative_to("/w").as_posix(), one.lines) for one in definitions]


PKG = {"pkg___INIT": "", "pkg__a": "def f(x): pass\ndef g(): pass\nK = 1\n"}


@pytest.mark.parametrize(
    "text",
    ["from pkg.a import f\n", "from .a import f\n", "from . import a\na.f(1)\n", "import pkg.a\npkg.a.f()\n",
     "import pkg.a as z\nz.f\n", "from ..pkg.a import f as h\n"],
)  # fmt: skip
def test_every_form_of_import_finds_the_definition(text):
    assert found(tree(**PKG), text) == [("pkg/a.py", "def f(x): ...")]


def test_a_star_import_finds_every_definition():
    assert found(tree(**PKG), "from .a import *\n") == [("pkg/a.py", "def f(x): ...\ndef g(): ...\nK = 1")]


def test_a_name_imported_by_a_package_is_found():
    files = tree(**{**PKG, "pkg___INIT": "from .a import g\n"})
    assert found(files, "from pkg import g\n", "/w/main.py") == [("pkg/a.py", "def g(): ...")]


@pytest.mark.parametrize("folder", ["src", "lib"])
def test_modules_in_a_source_folder_are_found(folder):
    files = tree(**{f"{folder}__pkg___INIT": "def f(): pass\n"})
    assert found(files, "from pkg import f\n", "/w/tests/test_f.py") == [(f"{folder}/pkg/__init__.py", "def f(): ...")]


@pytest.mark.parametrize(
    "text", ["import os\n", "from pkg.gone import f\n", "from .....a import f\n", "from .a import gone\n", "x = 1\n"]
)
def test_unknown_names_are_not_found(text):
    assert found(tree(**PKG), text) == []


def test_circular_imports_end():
    files = tree(pkg__main="from .a import f\ndef own(): pass\n", pkg__a="from .main import own\nfrom .a import f\n")
    assert found(files, "from .main import own\nfrom .a import f\n") == []


def test_names_used_near_the_cursor_come_first():
    files = tree(pkg__a="def f(): pass\ndef g(): pass\n", pkg__b="def h(): pass\n")
    text = "from .a import f, g\nfrom .b import h\n"
    assert found(files, text, near="g(") == [("pkg/a.py", "def g(): ...\ndef f(): ..."), ("pkg/b.py", "def h(): ...")]
    assert [path for path, _ in found(files, text, near="h(")] == ["pkg/b.py", "pkg/a.py"]


def test_a_file_is_read_again_only_when_it_changes():
    files = tree(**PKG)
    workspace = WorkspaceIndex([Path("/w")], files)
    imports = imports_of("from .a import f\n")

    def lines():
        return [one.lines for one in workspace.definitions(Path("/w/pkg/main.py"), imports, "")]

    assert lines() == lines() == ["def f(x): ..."]
    assert files.reads == ["pkg/a.py"]
    files.change("pkg/a.py", "def f(x, y): pass\n")
    assert lines() == ["def f(x, y): ..."]
    del files.versions[Path("/w/pkg/a.py")]
    assert lines() == []


def test_files_outside_of_the_workspace_are_not_read():
    files = tree(**PKG)
    files.versions[Path("/secret.py")] = 0
    files.texts[Path("/secret.py")] = "def f(): pass\n"
    assert found(files, "from ..secret import f\n", "/w/main.py") == []
    assert files.reads == []


def test_the_number_of_files_and_names_is_limited():
    files = tree(**{f"m{i}": "".join(f"def f{k}(): pass\n" for k in range(50)) for i in range(30)})
    text = "".join(f"from m{i} import *\n" for i in range(30))
    definitions = found(files, text, "/w/main.py")
    assert len(definitions) == MAX_MODULES
    assert all(lines.count("\n") + 1 == MAX_NAMES for _, lines in definitions)
