"""The weights of repeated edits are fitted to a history."""

import subprocess
import tomllib

import pytest
from typer.testing import CliRunner

from dg_training.commands import app
from dg_training.next_edits import fit

TEXTS = (
    "a = load(1)\nb = 2\nc = load(3)\nd = load(4)\nprint(a)\n",
    "a = read(1)\nb = 2\nc = read(3)\nd = read(4)\nprint(a)\n",
)


def test_a_feature_of_right_examples_gets_a_larger_weight():
    rows = [["bias", "right"]] * 50 + [["bias", "wrong"]] * 50 + [["bias", "even"]] * 50
    weights = fit(rows, [True] * 50 + [False] * 50 + [True, False] * 25)
    assert weights["right"] > 1
    assert weights["wrong"] < -1
    assert weights["even"] == pytest.approx(0, abs=0.1)


def test_the_command_writes_the_weights_of_a_history(tmp_path):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")

    def git(*arguments):
        subprocess.run(["git", *identity, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init", "--quiet")
    for text in TEXTS:
        (tmp_path / "code.py").write_text(text)
        git("add", ".")
        git("commit", "--quiet", "--message", "change")
    out = tmp_path / "weights.toml"
    done = CliRunner().invoke(app, ["next-edits", str(tmp_path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    weights = tomllib.loads(out.read_text())["weights"]
    assert weights["bias"]
    assert any(name.startswith("rename ") for name in weights)
