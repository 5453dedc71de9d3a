"""Documents and code agree: settings, commands, options, JSON keys, links."""

import ast
import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from dg_lsp import settings
from dg_lsp.settings import Settings, parse_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sentences():
    """The docstring of each field: `{"ModelSettings.threads": "CPU threads; ..."}`."""
    found = {}
    for node in ast.parse(Path(settings.__file__).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for line, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                found[f"{node.name}.{line.target.id}"] = after.value.value if is_text else ""
    return found


def leaves():
    """Every setting: dotted key, default, docstring."""
    for key, field, group in settings.leaves():
        yield key, field.default, sentences()[f"{group.__name__}.{field.name}"]


def row(key, default, sentence):
    """The row of the setting in docs/settings.md."""
    shown = json.dumps(default) if isinstance(default, (bool, str, tuple)) else default
    return f"| `{key}` | `{shown}` | {sentence} |"


@pytest.mark.parametrize(("key", "default", "sentence"), list(leaves()), ids=lambda value: str(value)[:30])
def test_every_setting_is_documented(key, default, sentence):
    assert sentence.endswith("."), f"{key} has no sentence under its field"
    assert row(key, default, sentence) in (ROOT / "docs/settings.md").read_text(encoding="utf-8").splitlines()


def test_no_removed_setting_is_documented():
    rows = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs/settings.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [key for key, _, _ in leaves()]


def test_the_documented_example_is_a_valid_settings_file():
    [example] = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/settings.md").read_text(encoding="utf-8"), re.DOTALL)
    assert parse_settings(tomllib.loads(example)) != Settings()


def test_make_commands_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z0-9]+):", MAKEFILE, re.MULTILINE))
    assert {"demo", "test", "check", "fix", "bench", "e2e", "clean"} <= targets
    assert set(re.findall(r"\bmake ([a-z0-9]+)\b", README)) <= targets
    phony = next(line for line in MAKEFILE.splitlines() if line.startswith(".PHONY:")).split()[1:]
    assert set(phony) == targets


def test_documented_commands_and_options_exist(dg_lsp_help):
    for page in PAGES:
        for command, rest in re.findall(r"(?:^|[ /`])dg-lsp ([a-z]+)\b([^\n`#]*)", page.read_text(encoding="utf-8")):
            if command in ("is", "fills", "completes", "does", "runs", "again", "with", "reads"):
                continue
            inner = re.match(r" ([a-z-]+)\b", rest) if command in ("bench", "models", "daemon") else None
            known = dg_lsp_help(command, *(inner.groups() if inner else ()))
            for option in re.findall(r"--[a-z-]+", rest):
                assert option in known, f"{page.name}: dg-lsp {command} has no {option}"


@pytest.fixture
def dg_lsp_help(capsys, monkeypatch):
    from dg_lsp.cli import run

    monkeypatch.setenv("COLUMNS", "200")

    def call(*command):
        assert run([*command, "--help"]) == 0, f"no command {command}"
        return capsys.readouterr().out

    return call


def test_sample_positions_of_the_readme_are_listed():
    listed = tomllib.loads((ROOT / "samples/places.toml").read_text(encoding="utf-8"))["places"]
    places = {(place["file"], place["line"]) for place in listed}
    for page in (README, MAKEFILE, (ROOT / "samples/README.md").read_text(encoding="utf-8")):
        for file, line in re.findall(r"samples/(\w+\.py):(\d+)", page):
            assert (file, int(line)) in places


def test_documented_json_keys_are_printed():
    from dg_lsp.cli.output import fill_object
    from dg_lsp.engine.result import FillResult, Timings
    from dg_lsp.postprocess.validate import Candidate

    result = FillResult("m", (Candidate("x", -0.1),), (), 16, 1, 1.0, 1, 0, Timings(0, 0, 0, 0, 0))
    printed = fill_object(result, 0.0)
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    for keys in (printed, printed["candidates"][0], printed["timings_ms"]):
        places = [page.find(f'"{key}"') for key in keys]
        assert all(place >= 0 for place in places)
        assert places == sorted(places)
    [block] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert list(json.loads(block)) == list(printed)
    assert list(json.loads(block)["timings_ms"]) == list(printed["timings_ms"])


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


def test_the_model_card_names_the_bundled_weights():
    models = ROOT / "dg_lsp" / "models"
    digest = hashlib.sha256((models / "dg-mini.gguf").read_bytes()).hexdigest()
    assert f"`{digest}`" in (models / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert json.loads((models / "dg-mini.manifest.json").read_text(encoding="utf-8"))["sources"]
