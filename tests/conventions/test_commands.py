"""Every command of the documents is run here, or marked `<!-- not run: reason -->`."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dg_lsp.cli import run

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "benchmarks/README.md", "samples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(
    r"^(<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMAND = re.compile(r"(?:\w+=\S* )*(?:\./|\.venv/bin/)?(?:dg-lsp|make|python3?|pip|uv|npm|curl|code|git) ")


def blocks(page):
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def settled(output):
    """An output without what differs between machines: times, probabilities, and the decoder that was faster here."""
    output = re.sub(r"[\d.]+ (ms\b|s\b|%)|(prefill|denoise|postprocess) \d+", "#", output)
    output = re.sub(r"\w+(-\w+)?( \d+)?, \d+ steps?, [\d.]+ tokens per step", "#", output)
    return "\n".join(line.rstrip() for line in output.splitlines())


def runnable(page):
    return [block["text"] for block in blocks(page) if block["language"] == "sh" and not block["reason"]]


@pytest.fixture
def output_of(tmp_path, monkeypatch, capsys):
    """`output_of("dg-lsp doctor")`: what a line prints. A plain command of ours runs in this process, for speed."""
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("HOME", "XDG_CONFIG_HOME", "DG_LSP_DATA_DIR", "DG_LSP_DAEMON_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))

    def call(line):
        words = shlex.split(line, comments=True)
        if words[:1] == ["dg-lsp"] and "||" not in words:
            code = run(words[1:])
            out, err = capsys.readouterr()
        else:
            done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
            code, out, err = done.returncode, done.stdout, done.stderr
        assert code == 0, f"{line}\n{out}\n{err}"
        return out

    return call


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_from_its_first_to_its_last(page, output_of):
    every = blocks(page)
    for block, following in zip(every, [*every[1:], None], strict=True):
        if block["language"] == "sh" and not block["reason"]:
            printed = "".join(output_of(line) for line in block["text"].splitlines())
            if following is not None and not following["language"]:
                assert settled(following["text"]) in settled(printed), block["text"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_in_blocks_that_are_run_or_give_a_reason(page):
    for block in blocks(page):
        if COMMAND.match(block["text"]) and block["language"] != "text":
            assert block["language"] == "sh", block["text"]


def test_the_tests_that_a_release_runs_exist():
    script = (ROOT / "packaging/release.py").read_text(encoding="utf-8")
    names = re.findall(r'"(tests/[\w/]+\.py)(?:::(\w+))?"', script)
    assert len(names) > 4
    for path, test in names:
        assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {test}"
