"""Rules for every module that ruff and mypy do not check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dg_lsp"
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    return str(path.relative_to(ROOT))


def test_packages_import_downwards_only():
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    process = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_has_a_docstring(path):
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


def test_every_package_has_tests():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert packages <= tested


def test_only_the_command_line_prints_to_standard_output():
    """The language server writes messages to standard output; other output would corrupt them."""
    packages = ("server", "engine", "backends", "postprocess", "models", "diffusion", "canvas", "context", "metrics")
    for path in (path for name in packages for path in (PACKAGE / name).rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path


def test_the_package_contains_its_type_marker():
    assert (PACKAGE / "py.typed").exists()


def test_the_docstring_of_errors_shows_their_tree():
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


def test_exit_codes_follow_the_tree_of_errors():
    from dg_lsp import errors

    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    codes = {name: kind.exit_code for name, kind in kinds.items()}
    assert {name for name, code in codes.items() if code == 3} == {
        name for name, kind in kinds.items() if issubclass(kind, errors.ModelError | errors.BackendError)
    }
    assert set(codes.values()) == {2, 3}
