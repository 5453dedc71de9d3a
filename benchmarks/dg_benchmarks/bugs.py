"""Failing tests: how many of ten faulty Python functions a model rewrites so that their tests pass.

    python -m dg_benchmarks.bugs --model MODEL

The functions are in edits/bugs.toml. Each is rewritten by `dg-lsp rewrite --test`, as a user does it, which needs
bubblewrap and pytest. The time is that of the whole command, the model's load included.
"""

import argparse
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from pathlib import Path
from statistics import median

from dg_lsp.system import python_command

BUGS = Path(__file__).with_name("edits") / "bugs.toml"
HEAD = '"""Small functions."""\n\n\n'
NUM_HEAD = HEAD.count("\n")


def fixed(folder: Path, code: str, test: str, model: str) -> subprocess.CompletedProcess[str]:
    """Writes a function and its test into an empty folder, and runs the command that rewrites the function."""
    name = code.removeprefix("def ").partition("(")[0]
    (folder / "tools.py").write_text(HEAD + code, encoding="utf-8")
    body = textwrap.indent(test, "    ")
    (folder / "test_tools.py").write_text(f"from tools import {name}\n\n\ndef test_{name}():\n{body}", encoding="utf-8")
    lines = f"tools.py:{NUM_HEAD + 1}-{NUM_HEAD + code.count(chr(10))}"
    options = ("--model", model, "--format", "patch", "--test", f"{sys.executable} -m pytest -q test_tools.py")
    command = python_command("dg_lsp", "rewrite", lines, *options)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def main() -> None:
    """Reads the arguments and prints a line for each function and one for all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    model = parser.parse_args().model
    seconds: list[float] = []
    num_fixed = 0
    for bug in tomllib.loads(BUGS.read_text(encoding="utf-8"))["bug"]:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            result = fixed(Path(folder), bug["code"], bug["test"], model)
        seconds.append(time.monotonic() - began)
        num_fixed += result.returncode == 0
        verdict = "not fixed" if result.returncode else "fixed"
        print(f"{verdict:9} {seconds[-1]:5.0f} s  {result.stderr.strip().splitlines()[-1]}", flush=True)
    print(f"{model}: {num_fixed} of {len(seconds)} fixed, median {median(seconds):.0f} s")


if __name__ == "__main__":
    main()
