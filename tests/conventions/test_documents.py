"""Documents and code agree: settings, commands, options, JSON keys, links."""

import hashlib
import json
import re
import runpy
import tomllib
from functools import cache
from pathlib import Path

import pytest

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.settings import DECODERS, Settings, leaves, parse_settings

ROOT = Path(__file__).parents[2]
CONFIGURATION = runpy.run_path(ROOT / "editors/vscode/configuration.py")
SETTINGS = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_page_of_settings_has_one_row_for_each_setting():
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*)` \| (.*) \|$", SETTINGS, re.MULTILINE)
    assert [(key, json.loads(default), sentence) for key, default, sentence in rows] == [
        (key, json.loads(json.dumps(field.default)), CONFIGURATION["sentences"](group)[field.name])
        for key, field, group in leaves()
    ]


def test_every_promise_names_tests_that_exist():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| ")][2:]
    assert len(rows) > 30
    for row in rows:
        cell = row.rstrip(" |").rpartition(" | ")[2]
        references = re.findall(r"(tests/[\w/.]+\w)((?::? ?,? ?`test_\w+`)*)", cell)
        assert references, f"no test: {row}"
        for name, tests in references:
            path = ROOT / name
            assert path.exists(), row
            for test in re.findall(r"test_\w+", tests):
                assert re.search(rf"def {test}\b", path.read_text(encoding="utf-8")), f"{name} has no {test}"


def test_the_documented_examples_are_valid_settings_files():
    examples = re.findall(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)
    assert examples
    for example in examples:
        assert parse_settings(tomllib.loads(example)) != Settings()


def test_documented_commands_and_options_exist(dg_lsp_help):
    for page in PAGES:
        for command, rest in re.findall(r"(?:^|[ /`])dg-lsp ([a-z]+)\b([^\n`#]*)", page.read_text(encoding="utf-8")):
            if command in ("is", "fills", "completes", "does", "runs", "again", "with", "reads"):
                continue
            inner = re.match(r" ([a-z-]+)\b", rest) if command in ("bench", "models", "daemon") else None
            known = dg_lsp_help(command, *(inner.groups() if inner else ()))
            for option in re.findall(r"--[a-z-]+", rest):
                assert option in known, f"{page.name}: dg-lsp {command} has no {option}"


def test_the_synopsis_has_every_option_of_each_command(dg_lsp_help):
    synopsis = re.search(r"```text\n(.*?)```", (ROOT / "docs/commands.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    listed = {}
    for line in synopsis.replace("\n   ", " ").splitlines():
        words = re.match(r"dg-lsp ((?:(?:bench|models|daemon) )?[a-z-]+)", line)[1]
        listed.setdefault(words, set()).update(re.findall(r"--[a-z-]+", line))
    for words, options in listed.items():
        shown = re.findall(r"^│ \*? *(--[a-z-]+)(.*)", dg_lsp_help(*words.split()), re.MULTILINE)
        long = {name for name, rest in shown if not re.match(r" +-[no]\b", rest)}  # others have a short name
        assert long - options <= {"--help"}, words


def test_every_decoder_is_a_choice_of_the_setting_and_has_a_row_on_the_page_of_commands():
    assert [*DecoderName] == [*DECODERS]
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^  \| `([a-z-]+)` \| ", page, re.MULTILINE) == [*DecoderName]


@pytest.fixture
def dg_lsp_help(capsys, monkeypatch):
    from dg_lsp.cli import run

    monkeypatch.setenv("COLUMNS", "200")

    @cache
    def call(*command):
        assert run([*command, "--help"]) == 0, f"no command {command}"
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_the_changelog_begins_with_the_current_version():
    from dg_lsp import __version__

    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] in (__version__, "Unreleased")
    assert __version__ in headings[:2]


MODELS = ROOT / "dg_lsp" / "models"
CARDS = {"dg-mini": MODELS / "MODEL_CARD.md", "dg-base": MODELS / "dg-base.MODEL_CARD.md"}


def test_readme_and_model_cards_have_the_same_numbers():
    texts = (page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *CARDS.values()))
    of_readme, *of_cards = (set(re.findall(r"^\|.*\|$", text, re.MULTILINE)) for text in texts)
    numbers = {row for row in of_readme if re.search(r"\d (%|ms)", row)}
    assert len(numbers) >= 3
    assert numbers <= set.union(*of_cards)


@pytest.mark.parametrize("name", CARDS)
def test_the_model_card_names_the_bundled_weights(name):
    digest = hashlib.sha256((MODELS / f"{name}.gguf").read_bytes()).hexdigest()
    assert f"`{digest}`" in CARDS[name].read_text(encoding="utf-8")


def test_the_origin_and_the_changes_of_the_bundled_models_are_told():
    notice = (MODELS / "dg-base.NOTICE").read_text(encoding="utf-8")
    assert all(words in notice for words in ("SmolLM2-135M-Instruct by HuggingFaceTB", "Apache License", "was changed"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "dg_lsp/models/dg-base.NOTICE" in project["license-files"]
    assert json.loads((MODELS / "dg-mini.manifest.json").read_text(encoding="utf-8"))["sources"]
