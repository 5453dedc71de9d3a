"""The script that writes the settings into the VS Code extension."""

import importlib.util
from pathlib import Path

import pytest

EXTENSION = Path(__file__).parents[2] / "editors/vscode"


@pytest.fixture(scope="session")
def configuration():
    spec = importlib.util.spec_from_file_location("configuration", EXTENSION / "configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
