"""The index of the definitions that a buffer imports."""

import pytest

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.context.languages import language_id_of
from dg_lsp.context.tags import definitions_of, imports_of
from dg_lsp.server import workspace_index
from dg_lsp.server.documents import DocumentStore
from dg_lsp.server.workspace_index import WorkspaceIndex
from dg_lsp.settings import PrivacySettings


@pytest.fixture
def index(tmp_path):
    """`index(files)` writes files and returns an index of their folder, which is empty otherwise."""

    def make(files, excluded=()):
        for name, text in files.items():
            (tmp_path / "w" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "w" / name).write_text(text)
        return WorkspaceIndex(
            DocumentStore(), Exclusion(PrivacySettings(exclude_patterns=excluded), [(tmp_path / "w").as_uri()])
        )

    return make


@pytest.fixture
def imported(index, tmp_path):
    def find(files, text, path="pkg/main.py", near="", excluded=()):
        snapshot = Snapshot((tmp_path / "w" / path).as_uri(), 0, text, language_id_of(path))
        definitions = index(files, excluded).definitions(snapshot, imports_of(text), near or text)
        return [
            (definition.path.relative_to(tmp_path / "w").as_posix(), definition.lines) for definition in definitions
        ]

    return find


PKG = {"pkg/__init__.py": "from .a import g\n", "pkg/a.py": "def f(x): pass\ndef g(): pass\nK = 1\n"}


@pytest.mark.parametrize(
    "text",
    ["from pkg.a import f\n", "from .a import f\n", "from . import a\na.f(1)\n", "import pkg.a\npkg.a.f()\n",
     "import pkg.a as z\nz.f\n", "from ..pkg.a import f as h\n"],
)  # fmt: skip
def test_every_form_of_import_finds_the_definition(imported, text):
    assert imported(PKG, text) == [("pkg/a.py", "def f(x): ...")]


@pytest.mark.parametrize(
    ("text", "near", "expected"),
    [
        pytest.param("from .a import *\n", "f()", "def f(x): ...", id="of all names those that are used"),
        pytest.param("from pkg import g\n", "f()", "def g(): ...", id="a name that a package imports"),
        pytest.param("from pkg.b import g\n", "f()", "def g(): ...", id="another file of the package"),
        pytest.param("import os\nfrom .a import gone\n", "x()", "", id="an unknown name"),
    ],
)
def test_imported_names_are_found(imported, text, near, expected):
    assert imported(PKG, text, near=near) == ([("pkg/a.py", expected)] if expected else [])


def test_a_name_of_several_files_is_that_of_the_nearest_one(imported):
    files = {f"{folder}a.py": f"def f({folder[:1]}): pass\n" for folder in ("x/", "pkg/", "pkg/y/")}
    assert imported(files, "from .a import f\n") == [("pkg/a.py", "def f(p): ...")]
    assert imported(files, "from x.a import f\n") == [("x/a.py", "def f(x): ...")]


def test_folders_of_installed_and_hidden_files_are_not_searched(imported):
    files = {f"{folder}/a.py": "def f(x): pass\n" for folder in (".git", "venv", "node_modules")}
    assert imported(files, "from a import f\n", "main.py") == []


def test_names_used_near_the_cursor_come_first(imported):
    files = {"pkg/a.py": "def f(): pass\ndef g(): pass\n", "pkg/b.py": "def h(): pass\n"}
    text = "from .a import f, g\nfrom .b import h\n"
    assert imported(files, text, near="g() ") == [
        ("pkg/a.py", "def g(): ...\ndef f(): ..."),
        ("pkg/b.py", "def h(): ..."),
    ]
    assert [path for path, _ in imported(files, text, near="h()")] == ["pkg/b.py", "pkg/a.py"]


def test_a_file_is_read_again_only_when_it_changes(index, tmp_path, monkeypatch):
    workspace, file = index(PKG), tmp_path / "w/pkg/a.py"
    snapshot = Snapshot((tmp_path / "w/pkg/main.py").as_uri(), 0, "from .a import f\n", "python")
    parsed = []
    monkeypatch.setattr(
        workspace_index, "definitions_of", lambda text, name: parsed.append(text) or definitions_of(text, name)
    )

    def lines():
        imports = imports_of(snapshot.text)
        return [definition.lines for definition in workspace.definitions(snapshot, imports, "")]

    assert lines() == lines() == ["def f(x): ..."]
    assert parsed == [PKG["pkg/a.py"]]
    file.write_text("def f(x, y): pass\n")
    assert lines() == ["def f(x, y): ..."]
    file.unlink()
    assert lines() == []


def test_files_outside_of_the_workspace_are_not_read(imported, tmp_path):
    (tmp_path / "secret.py").write_text("def f(): pass\n")
    assert imported(PKG, "from ..secret import f\n", "main.py") == []


def test_a_home_that_is_a_link_changes_nothing(tmp_path):
    real, linked = tmp_path / "data/home", tmp_path / "home"
    (real / "w").mkdir(parents=True)
    linked.symlink_to(real)
    (real / "w/.gitignore").write_text("ignored.py\n")
    (real / "w/ignored.py").write_text("")
    (real / "w/other.py").symlink_to("ignored.py")
    (real / "w/shown.py").write_text("def f(): ...\n")
    for root in (real, linked):
        exclusion = Exclusion(PrivacySettings(), [(root / "w").as_uri()])
        index = WorkspaceIndex(DocumentStore(), exclusion)
        for folder in (real / "w", linked / "w"):
            assert exclusion.is_ignored((folder / "ignored.py").as_uri())
            assert exclusion.is_ignored((folder / "other.py").as_uri())
            assert not exclusion.is_ignored((folder / "shown.py").as_uri())
            snapshot = Snapshot((folder / "a.py").as_uri(), 0, "from .shown import f\n", "python")
            assert index.definitions(snapshot, imports_of(snapshot.text), "f")


def test_links_out_of_the_workspace_are_not_followed(imported, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.py").write_text("def f(): pass\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/secret.py").symlink_to(tmp_path / "outside/secret.py")
    (tmp_path / "w/linked").symlink_to(tmp_path / "outside")
    (tmp_path / "w/circle.py").symlink_to(tmp_path / "w/circle.py")
    text = "from secret import f\nfrom linked.secret import f\nfrom circle import f\n"
    assert imported({}, text, "main.py") == []
    (tmp_path / "w/inside.py").symlink_to(tmp_path / "w/pkg/a.py")
    assert imported(PKG, "from inside import f\n", "main.py") == [("inside.py", "def f(x): ...")]


def test_the_number_of_files_and_names_is_limited(imported):
    files = {f"m{i}.py": "".join(f"def f{i}_{k}(): pass\n" for k in range(50)) for i in range(30)}
    near = " ".join(f"f{i}_{k}" for i in range(30) for k in range(50))
    definitions = imported(files, "".join(f"import m{i}\n" for i in range(30)), "main.py", near)
    assert len(definitions) == workspace_index.MAX_MODULES
    assert all(lines.count("\n") + 1 == workspace_index.MAX_NAMES for _, lines in definitions)


TREES = {
    "javascript": {"main.js": "import { f } from './lib/tools'\n", "lib/tools.js": "export function f(a) {}\n"},
    "an index of TypeScript": {
        "src/main.tsx": "import * as tools from '../lib'\ntools.f\n",
        "lib/index.ts": "export { f } from './tools.js'\n",
        "lib/tools.ts": "export function f(a: T) {}\n",
    },
    "names that an index of JavaScript passes on": {
        "main.mjs": "import { f } from './lib'\n",
        "lib/index.js": "export * from './tools'\n",
        "lib/tools.js": "export function f(a) {}\n",
    },
    "go": {
        "cmd/main.go": 'package main\nimport "example.com/m/tools"\nfunc main() { tools.F() }\n',
        "go.mod": "module example.com/m\n",
        "tools/a.go": "package tools\nfunc F(a int) {}\n",
    },
    "a package of Go": {"a.go": "package a\nfunc G() { F() }\n", "b.go": "package a\nfunc F(a int) {}\n"},
    "rust": {"src/main.rs": "use crate::tools::f;\n", "src/tools.rs": "pub fn f(a: i32) {}\n"},
    "a module of Rust": {"src/main.rs": "mod tools;\ntools::f();\n", "src/tools/mod.rs": "pub fn f(a: i32) {}\n"},
    "an outer module of Rust": {"src/a/b.rs": "use super::c::f;\n", "src/a/c.rs": "pub fn f(a: i32) {}\n"},
    "java": {
        "app/src/com/x/Main.java": "package com.x;\nimport com.y.F;\n",
        "app/src/com/y/F.java": "class F {\n  int f(int a) {}\n}\n",
    },
    "a package of Java": {"com/Main.java": "class Main { F f; }\n", "com/F.java": "class F { int f(int a) {} }\n"},
    "kotlin": {"com/x/Main.kt": "import com.y.f\n", "com/y/Tools.kt": "fun f(a: Int) = 1\n"},
    "c": {"src/main.c": '#include "tools.h"\nf();\n', "include/tools.h": "int f(int a);\n"},
    "cpp": {"src/main.cpp": '#include "../inc/tools.hpp"\nf();\n', "inc/tools.hpp": "int f(int a);\n"},
    "ruby": {"bin/main.rb": "require_relative '../lib/tools'\nf(1)\n", "lib/tools.rb": "def f(a)\n  1\nend\n"},
    "php": {"src/Main.php": "use App\\Sub\\F;\n", "src/Sub/F.php": "<?php\nclass F { function f($a) {} }\n"},
    "lua": {"main.lua": "local t = require('x.tools')\nt.f()\n", "lua/x/tools.lua": "function M.f(a) end\n"},
}  # the first file imports the last one


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_imports_lead_to_files_in_every_language(imported, tree):
    [(path, text), *_, (target, _)] = tree.items()
    [(where, lines)] = imported(tree, text, path)
    assert where == target
    assert "f" in lines.lower()
    assert "a" in lines


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_in_no_language_excluded_files_and_links_out_of_the_workspace_are_read(imported, tree, tmp_path):
    [(path, text), *_, (target, code)] = tree.items()
    others = {name: content for name, content in tree.items() if name != target}
    (tmp_path / "outside").write_text(code)
    (tmp_path / "w" / target).parent.mkdir(parents=True)
    (tmp_path / "w" / target).symlink_to(tmp_path / "outside")
    assert imported(others, text, path) == []
    (tmp_path / "w" / target).unlink()
    assert imported(tree, text, path, excluded=(f"**/{target}",)) == []


def test_a_large_file_is_not_parsed(imported):
    minified = "export function f(a){}" + "var a=1;" * (5_000_000 // 8)
    assert imported({"big.js": minified}, "import { f } from './big'\n", "main.js") == []


def test_a_binary_file_with_a_known_suffix_is_not_read(imported):
    assert imported({"x.py": "\0" * 100 + "\ndef f(): pass\n"}, "from x import f\n", "main.py") == []
    assert imported({"x.py": "\ndef f(): pass\n"}, "from x import f\n", "main.py") == [("x.py", "def f(): ...")]


def test_many_new_files_are_parsed_in_several_requests(index, tmp_path):
    files = {f"m{i}.py": f"def f{i}(): pass\n" + "#" * 60_000 for i in range(3)}
    workspace, text = index(files), "from m0 import f0\nfrom m1 import f1\nfrom m2 import f2\n"
    snapshot = Snapshot((tmp_path / "w/main.py").as_uri(), 0, text, "python")
    imports = imports_of(text)
    counts = [(len(workspace.definitions(snapshot, imports, "")), workspace.is_complete) for _ in range(3)]
    assert counts == [(1, False), (2, False), (3, True)]
