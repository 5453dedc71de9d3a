"""The manifest of the VS Code extension agrees with the server and the extension's code."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors/vscode"
PACKAGE = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted((EXTENSION / "src").rglob("*.ts"))}
COMMANDS = {command["command"] for command in PACKAGE["contributes"]["commands"]}
UNLISTED = {"dg-lsp.askInstruction", "dg-lsp.showMenu"}
"""Commands run only by the server or the status bar."""


def test_the_manifest_has_the_settings_of_the_server(configuration):
    assert configuration.generated(PACKAGE) == PACKAGE, "run make fix"


def test_settings_of_the_extension_are_not_sent_to_the_server(configuration):
    [own] = re.findall(r"const OWN = \[(.*)\]", SOURCES["options.ts"])
    assert set(re.findall(r'"(\w+)"', own)) == {key.split(".")[1] for key in configuration.OWN}


def test_the_manifest_has_the_bounds_of_the_server(configuration):
    described = dict(configuration.properties())
    confidence = described["dg-lsp.completion.min_confidence"]
    assert confidence | {"minimum": 0, "maximum": 1} == confidence
    assert described["dg-lsp.completion.deadline_ms"]["exclusiveMinimum"] == 0
    assert "diffusion" in described["dg-lsp.completion.decoder"]["enum"]
    assert re.search(described["dg-lsp.model.device"]["pattern"], "cuda:1")
    assert not re.search(described["dg-lsp.model.device"]["pattern"], "cuda:1x")
    assert described["dg-lsp.privacy.exclude_patterns"]["default"] == []


def test_every_command_is_declared_and_implemented():
    written = {name for text in SOURCES.values() for name in re.findall(r'"(dg-lsp\.\w+)"(?=: |, \()', text)}
    assert written - UNLISTED == COMMANDS
    everything = json.dumps(PACKAGE["contributes"])
    assert set(re.findall(r"command:(dg-lsp\.\w+)|onCommand:(dg-lsp\.\w+)", everything)) <= {
        pair for name in COMMANDS for pair in ((name, ""), ("", name))
    }
    for menu in (*PACKAGE["contributes"]["menus"].values(), PACKAGE["contributes"]["keybindings"]):
        assert {entry["command"] for entry in menu} <= COMMANDS


def test_referenced_files_exist():
    shown = [step["media"]["markdown"] for guide in PACKAGE["contributes"]["walkthroughs"] for step in guide["steps"]]
    for name in (*shown, PACKAGE["icon"], "media/denoising.css", "README.md"):
        assert (EXTENSION / name).exists(), name


def test_the_lock_file_names_no_host():
    assert "://" not in re.sub(r'"url": "[^"]*"', "", (EXTENSION / "package-lock.json").read_text(encoding="utf-8"))
