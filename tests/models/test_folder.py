import sys
from pathlib import Path

import pytest

from dg_lsp.models.presets import model_folder
from dg_lsp.system import data_folder


@pytest.fixture(autouse=True)
def home(monkeypatch):
    for name in ("DG_LSP_DATA_DIR", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("USERPROFILE", "/home/ada")


@pytest.mark.parametrize(
    ("platform", "folder"),
    [
        ("linux", "/home/ada/.local/share/dg-lsp"),
        ("darwin", "/home/ada/Library/Application Support/dg-lsp"),
        ("win32", "/home/ada/AppData/Local/dg-lsp"),
    ],
)
def test_data_lies_where_the_system_keeps_it(platform, folder, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    assert data_folder() == Path(folder)


@pytest.mark.parametrize(("platform", "variable"), [("linux", "XDG_DATA_HOME"), ("win32", "LOCALAPPDATA")])
def test_the_systems_own_variable_moves_it(platform, variable, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, "/elsewhere")
    assert data_folder() == Path("/elsewhere/dg-lsp")


def test_our_variable_wins(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    monkeypatch.setenv("DG_LSP_DATA_DIR", "~/mine")
    assert model_folder("m") == Path("/home/ada/mine/models/m")
