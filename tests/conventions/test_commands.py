"""Every command of the documents is run here, or marked `<!-- not run: reason -->`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_from_its_first_to_its_last(page, tmp_path):
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "home/config"),
        "DG_LSP_DATA_DIR": str(tmp_path / "home/data"),
        "DG_LSP_DAEMON_DIR": str(tmp_path / "home/daemon"),
    }
    (tmp_path / "home").mkdir()
    every = blocks(page)
    for block, following in zip(every, [*every[1:], None], strict=True):
        text = block["text"]
        if block["language"] != "sh" or block["reason"]:
            continue
        done = subprocess.run(
            ["/bin/sh", "-euc", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        if following is not None and not following["language"]:
            assert settled(following["text"]) in settled(done.stdout), text


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
        assert f"def {test}" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {test}"
