from pathlib import Path

import pytest

from dg_lsp.server.workspace_index import MAX_MODULES, MAX_NAMES, Workspace, imports_of


class Tree:
    """Files in a dictionary, and how often each was read."""

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


def asked(files, text, path="/w/pkg/main.py", near=""):
    workspace = Workspace([Path("/w")], files)
    found = workspace.definitions(Path(path), imports_of(text), near or text)
    return [(one.path.relative_to("/w").as_posix(), one.lines) for one in found]


PKG = {"pkg___INIT": "", "pkg__a": "def f(x): pass\ndef g(): pass\nK = 1\n"}


@pytest.mark.parametrize(
    "text",
    ["from pkg.a import f\n", "from .a import f\n", "from . import a\na.f(1)\n", "import pkg.a\npkg.a.f()\n",
     "import pkg.a as z\nz.f\n", "from ..pkg.a import f as h\n"],
)  # fmt: skip
def test_a_name_leads_to_its_definition_however_it_is_imported(text):
    assert asked(tree(**PKG), text) == [("pkg/a.py", "def f(x): ...")]


def test_everything_is_everything():
    assert asked(tree(**PKG), "from .a import *\n") == [("pkg/a.py", "def f(x): ...\ndef g(): ...\nK = 1")]


def test_a_package_hands_on_what_it_imports_itself():
    files = tree(**{**PKG, "pkg___INIT": "from .a import g\n"})
    assert asked(files, "from pkg import g\n", "/w/main.py") == [("pkg/a.py", "def g(): ...")]


@pytest.mark.parametrize("folder", ["src", "lib"])
def test_sources_may_lie_in_a_folder_of_their_own(folder):
    files = tree(**{f"{folder}__pkg___INIT": "def f(): pass\n"})
    assert asked(files, "from pkg import f\n", "/w/tests/test_f.py") == [(f"{folder}/pkg/__init__.py", "def f(): ...")]


@pytest.mark.parametrize(
    "text", ["import os\n", "from pkg.gone import f\n", "from .....a import f\n", "from .a import gone\n", "x = 1\n"]
)
def test_what_leads_nowhere_is_nothing(text):
    assert asked(tree(**PKG), text) == []


def test_a_file_does_not_show_itself_and_a_circle_ends():
    files = tree(pkg__main="from .a import f\ndef own(): pass\n", pkg__a="from .main import own\nfrom .a import f\n")
    assert asked(files, "from .main import own\nfrom .a import f\n") == []


def test_what_is_used_near_the_cursor_comes_first():
    files = tree(pkg__a="def f(): pass\ndef g(): pass\n", pkg__b="def h(): pass\n")
    text = "from .a import f, g\nfrom .b import h\n"
    assert asked(files, text, near="g(") == [("pkg/a.py", "def g(): ...\ndef f(): ..."), ("pkg/b.py", "def h(): ...")]
    assert [path for path, _ in asked(files, text, near="h(")] == ["pkg/b.py", "pkg/a.py"]


def test_a_file_is_read_once_and_again_when_it_has_changed():
    files = tree(**PKG)
    workspace = Workspace([Path("/w")], files)
    imports = imports_of("from .a import f\n")

    def lines():
        return [one.lines for one in workspace.definitions(Path("/w/pkg/main.py"), imports, "")]

    assert lines() == lines() == ["def f(x): ..."]
    assert files.reads == ["pkg/a.py"]
    files.change("pkg/a.py", "def f(x, y): pass\n")
    assert lines() == ["def f(x, y): ..."]
    del files.versions[Path("/w/pkg/a.py")]
    assert lines() == []


def test_nothing_outside_of_the_workspace_is_looked_for():
    files = tree(**PKG)
    files.versions[Path("/secret.py")] = 0
    files.texts[Path("/secret.py")] = "def f(): pass\n"
    assert asked(files, "from ..secret import f\n", "/w/main.py") == []
    assert files.reads == []


def test_giant_imports_are_cut():
    files = tree(**{f"m{i}": "".join(f"def f{k}(): pass\n" for k in range(50)) for i in range(30)})
    text = "".join(f"from m{i} import *\n" for i in range(30))
    found = asked(files, text, "/w/main.py")
    assert len(found) == MAX_MODULES
    assert all(lines.count("\n") + 1 == MAX_NAMES for _, lines in found)
