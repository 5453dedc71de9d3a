"""What the VS Code extension says of itself is what the server and its own code do."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors/vscode"
PACKAGE = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted((EXTENSION / "src").rglob("*.ts"))}
COMMANDS = {command["command"] for command in PACKAGE["contributes"]["commands"]}
UNLISTED = {"dg-lsp.askInstruction", "dg-lsp.showMenu"}
"""Commands that only the server or the status bar runs."""


@pytest.fixture(scope="module")
def configuration():
    spec = importlib.util.spec_from_file_location("configuration", EXTENSION / "configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_settings_are_those_of_the_server(configuration):
    assert configuration.generated(PACKAGE) == PACKAGE, "run make fix"


def test_its_own_settings_are_kept_from_the_server(configuration):
    [own] = re.findall(r"const OWN = \[(.*)\]", SOURCES["options.ts"])
    assert set(re.findall(r'"(\w+)"', own)) == {key.split(".")[1] for key in configuration.OWN}


def test_bounds_are_what_the_server_would_refuse(configuration):
    described = dict(configuration.properties())
    confidence = described["dg-lsp.fill.min_confidence"]
    assert confidence | {"minimum": 0, "maximum": 1} == confidence
    assert described["dg-lsp.fill.deadline_ms"]["exclusiveMinimum"] == 0
    assert "diffusion" in described["dg-lsp.fill.decoder"]["enum"]
    assert re.search(described["dg-lsp.runtime.device"]["pattern"], "cuda:1")
    assert not re.search(described["dg-lsp.runtime.device"]["pattern"], "cuda:1x")
    assert described["dg-lsp.exclude.patterns"]["default"] == []


def test_every_command_is_there_and_every_one_there_is_listed():
    written = {name for text in SOURCES.values() for name in re.findall(r'"(dg-lsp\.\w+)"(?=: |, \()', text)}
    assert written - UNLISTED == COMMANDS
    everything = json.dumps(PACKAGE["contributes"])
    assert set(re.findall(r"command:(dg-lsp\.\w+)|onCommand:(dg-lsp\.\w+)", everything)) <= {
        pair for name in COMMANDS for pair in ((name, ""), ("", name))
    }
    for menu in (*PACKAGE["contributes"]["menus"].values(), PACKAGE["contributes"]["keybindings"]):
        assert {entry["command"] for entry in menu} <= COMMANDS


def test_what_it_shows_is_there():
    shown = [step["media"]["markdown"] for guide in PACKAGE["contributes"]["walkthroughs"] for step in guide["steps"]]
    for name in (*shown, PACKAGE["icon"], "media/denoising.css", "README.md"):
        assert (EXTENSION / name).exists(), name


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_says_what_it_is_and_is_read_in_one_sitting(name):
    assert SOURCES[name].startswith("/** ")
    assert len(SOURCES[name].splitlines()) <= 300


def test_its_lock_names_no_host():
    assert "://" not in re.sub(r'"url": "[^"]*"', "", (EXTENSION / "package-lock.json").read_text(encoding="utf-8"))


def test_it_is_small():
    packed = EXTENSION / "dist/dg-lsp.vsix"
    if not packed.exists():
        pytest.skip("not packed: run make editors")
    assert packed.stat().st_size < 1_000_000
