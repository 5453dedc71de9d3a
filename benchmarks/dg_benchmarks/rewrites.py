"""Rewrites of statements drawn from Python files: how many are shown, and how many of these break the file.

    python -m dg_benchmarks.rewrites FOLDER... [--number 130] [--strengths 0.3 0.6 1]

Prints a Markdown table. A file is broken if Python compiled it before and does not after the rewrite. No
deadline shortens a rewrite.
"""

import argparse
import ast
import math
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dg_benchmarks.gaps import drawn_files
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import RewriteRequest
from dg_lsp.postprocess.cpython import Validity, python_validity
from dg_lsp.settings import ModelSettings, Settings

MAX_LINES = 12  # of a statement
Selection = tuple[Snapshot, int, int]


def selections(folders: Sequence[Path], number: int) -> Iterator[Selection]:
    """Seeded statements without their indentation, and their offsets."""
    draw = random.Random(0)
    num_drawn = 0
    files = drawn_files(folders, draw)
    while num_drawn < number:
        uri, text = next(files)
        statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        statements = [node for node in statements if (node.end_lineno or 0) - node.lineno < MAX_LINES]
        if not statements:
            continue
        node = draw.choice(statements)
        starts = [0, *(index + 1 for index, char in enumerate(text) if char == "\n")]
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        num_drawn += 1
        yield Snapshot(uri, 0, text), start, end


def measure(engine: Engine, chosen: Sequence[Selection], strength: float) -> str:
    """A line of the table."""
    num_shown = 0
    num_broken = 0
    reasons = Counter[str]()
    for snapshot, start, end in chosen:
        request = RewriteRequest(snapshot, start, end, strength=strength)
        result = drain(engine.rewrite(request, deadline=math.inf))
        if result.reason:
            reasons[result.reason.value] += 1
            continue
        num_shown += 1
        text = snapshot.text[: result.start] + result.text + snapshot.text[result.end :]
        num_broken += python_validity(text) is not Validity.COMPILES
    refused = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
    return f"| {strength:g} | {len(chosen)} | {num_shown} | {num_broken} | {refused} |"


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--number", type=int, default=130)
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.3, 0.6, 1.0])
    parser.add_argument("--model", default="dg-mini")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    engine = open_engine(Settings(model=ModelSettings(name=arguments.model)))
    chosen = list(selections([folder.resolve() for folder in arguments.folders], arguments.number))
    print("| strength | selections | shown | broken | refused |\n|---|---|---|---|---|")
    try:
        for strength in arguments.strengths:
            print(measure(engine, chosen, strength), flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
