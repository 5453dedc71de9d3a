"""What every module keeps to, beside what ruff and mypy check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dg_lsp"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_LINES = 300


def name_of(path):
    return str(path.relative_to(ROOT))


def test_rooms_import_one_way():
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    process = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_a_file_is_read_in_one_sitting(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_nothing_is_left_for_later(path):
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
    assert not [word for word in words if word in path.read_text(encoding="utf-8")]


def test_no_drawer_for_everything():
    drawers = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
    assert not [path for path in MODULES if drawers & {*path.relative_to(PACKAGE).with_suffix("").parts}]


def test_every_room_has_tests():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert rooms <= tested


def test_nothing_is_printed_to_standard_output_but_by_the_command_line():
    """The language server owns standard output; a stray print would break its protocol."""
    rooms = ("server", "engine", "backends", "postprocess", "models", "diffusion", "canvas", "context", "metrics")
    for path in (path for room in rooms for path in (PACKAGE / room).rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path


def test_types_are_shipped():
    assert (PACKAGE / "py.typed").exists()


def test_errors_are_the_tree_that_their_docstring_draws():
    from dg_lsp import errors

    drawn = [line for line in (errors.__doc__ or "").splitlines() if re.match(r"    [ │├└─]*\w+Error\b", line)]
    depth_of = {}
    parents: list[tuple[int, str]] = []
    for line in drawn:
        depth, name = len(line) - len(line.lstrip(" │├└─")), line.lstrip(" │├└─").split()[0]
        while parents and parents[-1][0] >= depth:
            parents.pop()
        depth_of[name] = parents[-1][1] if parents else "Exception"
        parents.append((depth, name))
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert depth_of == {name: kind.__base__.__name__ for name, kind in classes.items()}


def test_exit_codes_are_those_that_the_tree_names():
    from dg_lsp import errors

    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    codes = {name: kind.exit_code for name, kind in kinds.items()}
    assert {name for name, code in codes.items() if code == 3} == {
        name for name, kind in kinds.items() if issubclass(kind, errors.ModelError | errors.BackendError)
    }
    assert set(codes.values()) == {2, 3}
