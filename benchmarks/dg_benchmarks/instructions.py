"""Edits by instruction: how many a model that follows instructions gets right, and how long it takes.

    python -m dg_benchmarks.instructions --model MODEL [--verbose]

The files and edits are in the folder `edits`. An edit is right if it is shown and the file has afterwards what
edits.toml asks for; tests of Python run in a sandbox, which needs bubblewrap. No deadline shortens an edit.
"""

import argparse
import math
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dg_benchmarks.rewrites import rewritten
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.context.languages import language_id_of
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import RewriteRequest, RewriteResult
from dg_lsp.sandbox import Sandbox
from dg_lsp.settings import ModelSettings, Settings

FOLDER = Path(__file__).with_name("edits")
Edit = Mapping[str, Any]


def edits() -> list[Edit]:
    """The rows of edits.toml."""
    rows: list[Edit] = tomllib.loads((FOLDER / "edits.toml").read_text(encoding="utf-8"))["edit"]
    return rows


def request_of(edit: Edit) -> RewriteRequest:
    """The edit as a request for whole lines of its file."""
    text = (FOLDER / f"{edit['file']}.txt").read_text(encoding="utf-8")
    first, last = edit["lines"]
    lines = text.splitlines(keepends=True)
    start = len("".join(lines[: first - 1]))
    end = len("".join(lines[:last]))
    snapshot = Snapshot(f"file:///shop/{edit['file']}", text, language_id_of(edit["file"]))
    return RewriteRequest(snapshot, start, end, instruction=edit["instruction"])


def is_right(edit: Edit, text: str, sandbox: Sandbox) -> bool:
    """Whether a file after the edit has what was asked for."""
    has_words = all(word in text for word in edit.get("has", ()))
    lacks_words = not any(word in text for word in edit.get("lacks", ()))
    passes = "test" not in edit or not sandbox.failure(f"{text}\n{edit['test']}\n")
    return has_words and lacks_words and passes


def run(engine: Engine, edit: Edit) -> tuple[RewriteResult, str]:
    """The result of an edit, and the file after it."""
    request = request_of(edit)
    result = drain(engine.rewrite(request, deadline=math.inf))
    return result, rewritten(request.snapshot.text, result)


def main() -> None:
    """Reads the arguments and prints a line for each edit and one for all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print the texts of wrong edits")
    arguments = parser.parse_args()
    sandbox = Sandbox(option="instructions")
    engine = open_engine(Settings(model=ModelSettings(name=arguments.model, threads=arguments.threads)))
    counts = Counter[str]()
    seconds: list[float] = []
    try:
        for edit in edits():
            started = time.monotonic()
            result, text = run(engine, edit)
            seconds.append(time.monotonic() - started)
            right = result.reason is None and is_right(edit, text, sandbox)
            counts.update({"shown": int(result.reason is None), edit["set"]: int(right), f"all {edit['set']}": 1})
            verdict = "right" if right else result.reason.value if result.reason else "wrong"
            print(f"{verdict:16} {edit['file']:10} {edit['instruction']}", flush=True)
            if arguments.verbose and not right:
                print(result.verdict.text)
    finally:
        engine.close()
    median = sorted(seconds)[len(seconds) // 2]
    sets = ", ".join(f"{name} {counts[name]} of {counts[f'all {name}']} right" for name in ("tuning", "held-out"))
    print(f"{engine.spec.name}: {sets}; {counts['shown']} shown, median {median:.1f} s")


if __name__ == "__main__":
    main()
