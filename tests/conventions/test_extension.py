"""The manifest of the VS Code extension agrees with the server and the extension's code."""

import json
import re
import runpy
import struct
from pathlib import Path

from dg_lsp.settings_files import FREE_KEYS, MODEL_KEYS

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors/vscode"
CONFIGURATION = runpy.run_path(EXTENSION / "configuration.py")
PACKAGE = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted((EXTENSION / "src").rglob("*.ts"))}
COMMANDS = {command["command"] for command in PACKAGE["contributes"]["commands"]}
UNLISTED = {"dg-lsp.askInstruction", "dg-lsp.askTest", "dg-lsp.showMenu"}
"""Commands run only by the server or the status bar."""
OF_THE_EDITOR = {f"editor.action.inlineSuggest.{name}" for name in ("trigger", "acceptNextLine")}
"""Commands of VS Code that have no default key."""


def test_the_manifest_has_the_settings_of_the_server():
    assert CONFIGURATION["generated"](PACKAGE) == PACKAGE, "run make fix"


def test_settings_of_the_extension_are_not_sent_to_the_server():
    [own] = re.findall(r"const OWN = \[(.*)\]", SOURCES["options.ts"])
    assert set(re.findall(r'"(\w+)"', own)) == {key.split(".")[1] for key in CONFIGURATION["OWN"]}


def test_a_folder_that_is_not_trusted_sets_no_more_in_the_editor_than_in_its_file():
    restricted = PACKAGE["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
    groups = PACKAGE["contributes"]["configuration"]
    settings = {key: schema for group in groups for key, schema in group["properties"].items()}
    of_the_user = {key for key, schema in settings.items() if schema.get("scope") in ("machine", "application")}
    free = {key for key in settings if key.startswith(tuple(f"dg-lsp.{name}" for name in FREE_KEYS))}
    free -= {f"dg-lsp.{key}" for key in (*MODEL_KEYS, "rewrite.preview")}
    assert settings.keys() - of_the_user - {*restricted} == {"dg-lsp.enable", *free}


def test_commands_are_hidden_where_they_have_no_effect():
    shown_if = {entry["command"]: entry["when"] for entry in PACKAGE["contributes"]["menus"]["commandPalette"]}
    assert "isWorkspaceTrusted" in shown_if["dg-lsp.fixFailingTest"]
    for command in ("dg-lsp.rewriteSelection", "dg-lsp.fillSelection", "dg-lsp.regenerate", "dg-lsp.fixFailingTest"):
        assert "editorHasSelection" in shown_if[command]
        assert "dg-lsp.isServed" in shown_if[command]
    used = set(re.findall(r"dg-lsp\.is\w+", json.dumps(PACKAGE["contributes"])))
    assert used == set(re.findall(r'"setContext", "(dg-lsp\.\w+)"', "".join(SOURCES.values())))


def test_the_gallery_and_the_walkthrough_show_files_that_exist():
    for name in ("homepage", "repository", "bugs"):
        assert "https://github.com/dg-lsp/dg-lsp" in json.dumps(PACKAGE[name])
    header = (EXTENSION / PACKAGE["icon"]).read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert min(struct.unpack(">II", header[16:])) >= 128
    assert re.fullmatch("#[0-9a-f]{6}", PACKAGE["galleryBanner"]["color"])
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (EXTENSION / "README.md").read_text(encoding="utf-8"))
    assert pictures
    for address in pictures:
        name = address.removeprefix("https://github.com/dg-lsp/dg-lsp/raw/main/")
        assert name != address
        assert (ROOT / name).suffix == ".png", "vsce refuses SVG"
        assert (ROOT / name).exists(), name
    guides = PACKAGE["contributes"]["walkthroughs"]
    for name in (*(step["media"]["markdown"] for guide in guides for step in guide["steps"]), "media/denoising.css"):
        assert (EXTENSION / name).exists(), name


def test_every_command_is_declared_and_implemented():
    written = {name for text in SOURCES.values() for name in re.findall(r'"(dg-lsp\.\w+)"(?=: |, \()', text)}
    assert written - UNLISTED == COMMANDS
    everything = json.dumps(PACKAGE["contributes"])
    assert set(re.findall(r"command:(dg-lsp\.\w+)|onCommand:(dg-lsp\.\w+)", everything)) <= {
        pair for name in COMMANDS for pair in ((name, ""), ("", name))
    }
    for menu in (*PACKAGE["contributes"]["menus"].values(), PACKAGE["contributes"]["keybindings"]):
        assert {entry["command"] for entry in menu} <= COMMANDS | OF_THE_EDITOR


def test_the_lock_file_names_no_host():
    assert "://" not in re.sub(r'"url": "[^"]*"', "", (EXTENSION / "package-lock.json").read_text(encoding="utf-8"))
