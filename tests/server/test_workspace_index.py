"""Ignored files, imports of a buffer, definitions of files, and the index that connects them."""

import os
from pathlib import Path, PureWindowsPath

import pytest
from pathspec import GitIgnoreSpec

from dg_lsp.context import exclusion as exclusion_module
from dg_lsp.server import workspace_index
from dg_lsp.server.documents import DocumentStore
from dg_lsp.server.workspace_index import Import, WorkspaceExclusion, WorkspaceIndex, definitions_of, imports_of
from dg_lsp.settings import PrivacySettings


@pytest.fixture
def exclusion(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n/only_here.py\n")
    (tmp_path / "src/.gitignore").write_text("!keep.log\n")
    return WorkspaceExclusion(PrivacySettings(), [tmp_path.as_uri()])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("main.py", False),
        ("src/a.log", True),
        ("src/inner/keep.log", False),
        ("keep.log", True),
        ("build/main.py", True),
        ("only_here.py", True),
        ("src/only_here.py", False),
        ("../a.log", False),
    ],
)
def test_files_are_ignored_as_git_ignores_them(exclusion, tmp_path, path, expected):
    assert exclusion.is_ignored(Path(os.path.normpath(tmp_path / path)).as_uri()) is expected


def test_documents_outside_of_every_folder_are_not_ignored(exclusion):
    assert not exclusion.is_ignored("untitled:a.log")
    exclusion.set_folders(["vscode-vfs://github/a"])
    assert not exclusion.is_ignored("file:///a.log")


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("file:///c%3A/Work", "file:///C:/work/Build/main.py", True),
        ("file:///C:/Work", "file:///c%3A/work/src/A.LOG", True),
        ("file:///C:/Work", "file:///D:/Work/a.log", False),
        ("file:///C:/Work", "file:///C:a.log", False),
        ("file://server/Share", "file://SERVER/share/a.log", True),
        ("file://server/share", "file://other/share/a.log", False),
        ("file:///C:/Work", "file:///C:/Work/main.py", False),
    ],
)
def test_files_are_ignored_on_windows(root, path, expected, monkeypatch):
    """With Windows' paths, and with one .gitignore file in each folder of a workspace."""
    monkeypatch.setattr(workspace_index.WorkspaceExclusion, "flavour", PureWindowsPath)
    monkeypatch.setattr(exclusion_module, "IGNORES_CASE", True)
    spec = GitIgnoreSpec.from_lines(["*.log", "build/"])
    monkeypatch.setattr(WorkspaceExclusion, "_spec", lambda *_: spec)
    assert WorkspaceExclusion(PrivacySettings(), [root]).is_ignored(path) is expected


def test_a_changed_gitignore_file_is_read_again(exclusion, tmp_path):
    uri, file = (tmp_path / "main.py").as_uri(), tmp_path / ".gitignore"
    assert not exclusion.is_ignored(uri)
    file.write_text("main.py\n")
    os.utime(file, ns=(1, 1))
    assert exclusion.is_ignored(uri)
    file.unlink()
    assert not exclusion.is_ignored(uri)


def test_a_gitignore_file_that_is_a_link_or_a_pipe_is_not_read(exclusion, tmp_path):
    uri, file = (tmp_path / "main.py").as_uri(), tmp_path / ".gitignore"
    file.rename(tmp_path / "patterns")
    (tmp_path / "patterns").write_text("main.py\n")
    file.symlink_to(tmp_path / "patterns")
    assert not exclusion.is_ignored(uri)
    file.unlink()
    os.mkfifo(file)
    assert not exclusion.is_ignored(uri)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a.b as c, d\n", [Import("a.b", 0, "", "c"), Import("d", 0, "", "d")]),
        ("from a.b import c as d, e\n", [Import("a.b", 0, "c", "d"), Import("a.b", 0, "e", "e")]),
        ("from . import a\n", [Import("", 1, "a", "a")]),
        ("from ..a import *\n", [Import("a", 2, "*", "*")]),
        ("from a import (  # why\n    b,\n    c,\n)\n", [Import("a", 0, "b", "b"), Import("a", 0, "c", "c")]),
        ("from a import b, \\\n    c\n", [Import("a", 0, "b", "b"), Import("a", 0, "c", "c")]),
        ("if X:\n    from a import b\n", [Import("a", 0, "b", "b")]),
        ("from a import b  # noqa\r\nimport c\r\n", [Import("a", 0, "b", "b"), Import("c", 0, "", "c")]),
        ("from a import (b,\n", []),
        ("from a import b\n\ndef f(:\n  x = (\n", [Import("a", 0, "b", "b")]),
        ("from a import\nimport b\n", [Import("b", 0, "", "b")]),
        ("import a; x = 1\n", []),
        ("important = 1\nfrom_here = 2\n", []),
        ("#" * workspace_index.MAX_IMPORT_CHARS + "\nimport a\n", []),
    ],
)
def test_imports_are_parsed_statement_by_statement(text, expected):
    assert list(imports_of(text)) == expected


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
        pytest.param("def f(a): pass\n\n\nclass B(\n", {"f": "def f(a): ..."}, id="incomplete"),
        pytest.param("name = '\ud7ff'\n", {"name": "name = '\ud7ff'"}, id="not ASCII"),
    ],
)
def test_definitions_of_a_file(text, expected):
    assert definitions_of(text) == expected


def test_a_class_shows_its_first_public_members():
    text = (
        'class A:\n    """Holds."""\n    x: int = 1\n    def __init__(self, x): self.x = x\n'
        "    @property\n    def y(self): return 1\n    def _z(self): pass\n    _w = 2\n    print(1)\n"
    )
    shown = 'class A:\n    """Holds."""\n    x: int = 1\n    def __init__(self, x): ...\n    def y(self): ...'
    assert definitions_of(text) == {"A": shown}
    large = "class A:\n" + "".join(f"    def m{i}(self): pass\n" for i in range(100))
    assert definitions_of(large)["A"].count("\n") == workspace_index.MAX_MEMBERS


@pytest.fixture
def index(tmp_path):
    """`index(files)` writes files and returns an index of their folder, which is empty otherwise."""

    def make(files):
        for name, text in files.items():
            (tmp_path / "w" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "w" / name).write_text(text)
        return WorkspaceIndex(DocumentStore(), WorkspaceExclusion(PrivacySettings(), [(tmp_path / "w").as_uri()]))

    return make


@pytest.fixture
def found(index, tmp_path):
    def find(files, text, path="pkg/main.py", near=""):
        definitions = index(files).definitions(tmp_path / "w" / path, imports_of(text), near or text)
        return [(one.path.relative_to(tmp_path / "w").as_posix(), one.lines) for one in definitions]

    return find


PKG = {"pkg/__init__.py": "from .a import g\n", "pkg/a.py": "def f(x): pass\ndef g(): pass\nK = 1\n"}


@pytest.mark.parametrize(
    "text",
    ["from pkg.a import f\n", "from .a import f\n", "from . import a\na.f(1)\n", "import pkg.a\npkg.a.f()\n",
     "import pkg.a as z\nz.f\n", "from ..pkg.a import f as h\n"],
)  # fmt: skip
def test_every_form_of_import_finds_the_definition(found, text):
    assert found(PKG, text) == [("pkg/a.py", "def f(x): ...")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("from .a import *\n", "def f(x): ...\ndef g(): ...\nK = 1", id="all names"),
        pytest.param("from pkg import g\n", "def g(): ...", id="a name that a package imports"),
        pytest.param(
            "import os\nfrom pkg.gone import f\nfrom .....a import f\nfrom .a import gone\n", "", id="unknown"
        ),
    ],
)
def test_imported_names_are_found(found, text, expected):
    assert found(PKG, text) == ([("pkg/a.py", expected)] if expected else [])


@pytest.mark.parametrize("folder", ["src", "lib"])
def test_modules_in_a_source_folder_are_found(found, folder):
    files = {f"{folder}/pkg/__init__.py": "def f(): pass\n"}
    assert found(files, "from pkg import f\n", "tests/test_f.py") == [(f"{folder}/pkg/__init__.py", "def f(): ...")]


def test_circular_imports_end(found):
    text = "from .main import own\nfrom .a import f\n"
    assert found({"pkg/main.py": "from .a import f\ndef own(): pass\n", "pkg/a.py": text}, text) == []


def test_names_used_near_the_cursor_come_first(found):
    files = {"pkg/a.py": "def f(): pass\ndef g(): pass\n", "pkg/b.py": "def h(): pass\n"}
    text = "from .a import f, g\nfrom .b import h\n"
    assert found(files, text, near="g(") == [("pkg/a.py", "def g(): ...\ndef f(): ..."), ("pkg/b.py", "def h(): ...")]
    assert [path for path, _ in found(files, text, near="h(")] == ["pkg/b.py", "pkg/a.py"]


def test_a_file_is_read_again_only_when_it_changes(index, tmp_path, monkeypatch):
    workspace, file = index(PKG), tmp_path / "w/pkg/a.py"
    parsed = []
    monkeypatch.setattr(workspace_index, "definitions_of", lambda text: parsed.append(text) or definitions_of(text))

    def lines():
        imports = imports_of("from .a import f\n")
        return [one.lines for one in workspace.definitions(tmp_path / "w/pkg/main.py", imports, "")]

    assert lines() == lines() == ["def f(x): ..."]
    assert parsed == [PKG["pkg/a.py"]]
    file.write_text("def f(x, y): pass\n")
    assert lines() == ["def f(x, y): ..."]
    file.unlink()
    assert lines() == []


def test_files_outside_of_the_workspace_are_not_read(found, tmp_path):
    (tmp_path / "secret.py").write_text("def f(): pass\n")
    assert found(PKG, "from ..secret import f\n", "main.py") == []


def test_a_home_that_is_a_link_changes_nothing(tmp_path):
    real, linked = tmp_path / "data/home", tmp_path / "home"
    (real / "w").mkdir(parents=True)
    linked.symlink_to(real)
    (real / "w/.gitignore").write_text("ignored.py\n")
    (real / "w/ignored.py").write_text("")
    (real / "w/other.py").symlink_to("ignored.py")
    (real / "w/shown.py").write_text("def f(): ...\n")
    for root in (real, linked):
        exclusion = WorkspaceExclusion(PrivacySettings(), [(root / "w").as_uri()])
        index = WorkspaceIndex(DocumentStore(), exclusion)
        for folder in (real / "w", linked / "w"):
            assert exclusion.is_ignored((folder / "ignored.py").as_uri())
            assert exclusion.is_ignored((folder / "other.py").as_uri())
            assert not exclusion.is_ignored((folder / "shown.py").as_uri())
            assert index.definitions(folder / "a.py", imports_of("from .shown import f\n"), "f")


def test_links_out_of_the_workspace_are_not_followed(found, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.py").write_text("def f(): pass\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/secret.py").symlink_to(tmp_path / "outside/secret.py")
    (tmp_path / "w/linked").symlink_to(tmp_path / "outside")
    (tmp_path / "w/circle.py").symlink_to(tmp_path / "w/circle.py")
    text = "from secret import f\nfrom linked.secret import f\nfrom circle import f\n"
    assert found({}, text, "main.py") == []
    (tmp_path / "w/inside.py").symlink_to(tmp_path / "w/pkg/a.py")
    assert found(PKG, "from inside import f\n", "main.py") == [("inside.py", "def f(x): ...")]


def test_the_number_of_files_and_names_is_limited(found):
    files = {f"m{i}.py": "".join(f"def f{k}(): pass\n" for k in range(50)) for i in range(30)}
    definitions = found(files, "".join(f"from m{i} import *\n" for i in range(30)), "main.py")
    assert len(definitions) == workspace_index.MAX_MODULES
    assert all(lines.count("\n") + 1 == workspace_index.MAX_NAMES for _, lines in definitions)
