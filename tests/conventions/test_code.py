"""Rules for every module that ruff and mypy do not check."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_packages_import_downwards_only():
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    process = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
