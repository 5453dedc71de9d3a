"""Rewrites of Python files: how many are shown, how many of these break the file, and how well gaps are filled.

    python -m dg_benchmarks.rewrites FOLDER... [--number 130] [--strengths 0.3 0.6 1]
    python -m dg_benchmarks.rewrites FOLDER... --gaps [--number 200] [--min-confidence 0]

Prints a Markdown table. A file is broken if Python accepted it before a rewrite and does not after it. No deadline
shortens a rewrite.

Without `--gaps`, statements are rewritten. With it, 2 to 5 gaps (statements, values, arguments) are cut out of at most
8 lines of a function, and filled together on one canvas or one after the other by the same weights. Time is that of the
processor. A gap is right if its fill equals what was cut, but for blanks.
"""

import argparse
import ast
import math
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import attrs

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.context.gaps import find_gaps
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import RewriteRequest, RewriteResult
from dg_lsp.postprocess.validate import compiles, parses
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

MAX_FILE = 60_000  # characters
MAX_LINES = 12  # of a statement that is rewritten
NUM_LINES = 8  # of a selection with gaps
MAX_CHARS = 60  # of a gap
WAYS = {  # how gaps are filled, by the decoder
    DecoderName.AUTOREGRESSIVE: "one after the other, autoregressive",
    DecoderName.DIFFUSION: "one after the other, diffusion",
    DecoderName.INFILL: "together",
}


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """A part of a file that becomes a gap."""

    start: int
    end: int
    placeholder: str


@dataclass(frozen=True, slots=True)
class GapCase:
    """A selection with gaps, and what stood in each of them."""

    request: RewriteRequest
    cut: tuple[str, ...]


def drawn_files(folders: Sequence[Path], draw: random.Random) -> Iterator[tuple[str, str]]:
    """URI and text of random files in ASCII that Python compiles, without end."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    while True:
        path = draw.choice(paths)
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.isascii() and len(text) <= MAX_FILE and compiles(text):
            yield path.as_uri(), text


def span_of(text: str, node: ast.stmt | ast.expr) -> tuple[int, int]:
    """The offsets of a node in the ASCII text of its file."""
    starts = [0, *(index + 1 for index, char in enumerate(text) if char == "\n")]
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return starts[node.lineno - 1] + node.col_offset, end


def statements(folders: Sequence[Path]) -> Iterator[RewriteRequest]:
    """Seeded statements without their indentation, without end."""
    draw = random.Random(0)
    for uri, text in drawn_files(folders, draw):
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        nodes = [node for node in nodes if (node.end_lineno or 0) - node.lineno < MAX_LINES]
        if nodes:
            yield RewriteRequest(Snapshot(uri, text), *span_of(text, draw.choice(nodes)))


def cuts_of(text: str) -> Iterator[Cut]:
    """Statements, values and arguments of functions that stand on one line."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    for part in (part for function in functions for part in ast.walk(function)):
        placeholders: list[tuple[ast.expr | ast.stmt | None, str]] = []
        if isinstance(part, ast.Assign | ast.Return):
            placeholders = [(part.value, "..."), (part, "pass")]
        elif isinstance(part, ast.Expr | ast.AugAssign) and not isinstance(part.value, ast.Constant):
            placeholders = [(part, "pass")]
        elif isinstance(part, ast.Call) and len(part.args) > 1:
            placeholders = [(argument, "") for argument in part.args[:-1] if not isinstance(argument, ast.Starred)]
        for missing, placeholder in placeholders:
            if missing is not None and missing.lineno == missing.end_lineno:
                yield Cut(*span_of(text, missing), placeholder)


def gap_cases(folders: Sequence[Path]) -> Iterator[GapCase]:
    """Seeded selections with gaps, without end."""
    draw = random.Random(0)
    for uri, text in drawn_files(folders, draw):
        if (case := gap_case(uri, text, draw)) is not None:
            yield case


def gap_case(uri: str, text: str, draw: random.Random) -> GapCase | None:
    """A selection of the file, or None where there are too few gaps or other placeholders."""
    cuts = sorted({cut for cut in cuts_of(text) if 2 < cut.end - cut.start <= MAX_CHARS})
    if not cuts:
        return None
    start = text.rfind("\n", 0, draw.choice(cuts).start) + 1
    end = len("\n".join(text[start:].split("\n")[:NUM_LINES])) + start
    nearby = [cut for cut in cuts if start <= cut.start and cut.end <= end]
    draw.shuffle(nearby)
    wanted = draw.randint(2, 5)
    by_line = dict[int, Cut]()
    for cut in nearby:
        if len(by_line) < wanted:
            by_line.setdefault(text.count("\n", 0, cut.start), cut)
    chosen = sorted(by_line.values())
    new = text
    for cut in reversed(chosen):
        new = new[: cut.start] + cut.placeholder + new[cut.end :]
    snapshot = Snapshot(uri, new)
    end += len(new) - len(text)
    gaps = find_gaps(snapshot, start, end)
    if len(chosen) < 2 or len(gaps) != len(chosen):
        return None
    return GapCase(RewriteRequest(snapshot, start, end, gaps=gaps), tuple(text[cut.start : cut.end] for cut in chosen))


def rewritten(text: str, result: RewriteResult) -> str:
    """The file after a rewrite that is shown."""
    return text[: result.start] + result.text + text[result.end :] if result.reason is None else text


def rewrite_row(engine: Engine, requests: Sequence[RewriteRequest], strength: float) -> str:
    """A line of the table of rewritten statements."""
    num_broken = 0
    reasons = Counter[str]()
    for request in requests:
        result = drain(engine.rewrite(replace(request, strength=strength), deadline=math.inf))
        if result.reason:
            reasons[result.reason.value] += 1
        elif not compiles(rewritten(request.snapshot.text, result)):
            num_broken += 1
    refused = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
    num_shown = len(requests) - reasons.total()
    return f"| {strength:g} | {len(requests)} | {num_shown} | {num_broken} | {refused} |"


def gap_row(engine: Engine, cases: Sequence[GapCase], decoder: DecoderName) -> str:
    """A line of the table of filled gaps."""
    counts = Counter[str]()
    seconds = 0.0
    for case in cases:
        text = case.request.snapshot.text
        began = time.process_time()
        result = drain(engine.rewrite(replace(case.request, decoder=decoder), deadline=math.inf))
        seconds += time.process_time() - began
        is_parsed = parses(rewritten(text, result))
        counts["passes"] += result.steps
        counts["gaps"] += len(result.gaps)
        counts["filled"] += sum(gap.reason is None for gap in result.gaps)
        pairs = zip(result.gaps, case.cut, strict=True)
        counts["right"] += sum(gap.text.split() == cut.split() for gap, cut in pairs)
        counts["parsed"] += is_parsed
        counts["broken"] += not is_parsed and parses(text)
    return (
        f"| {WAYS[decoder]} | {counts['passes'] / len(cases):.1f} | {1e3 * seconds / len(cases):.0f} ms "
        f"| {counts['filled']} of {counts['gaps']} | {counts['right']} | {counts['parsed']} of {len(cases)} "
        f"| {counts['broken']} |"
    )


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--gaps", action="store_true", help="fill gaps instead of rewriting statements")
    parser.add_argument("--number", type=int, help="of selections")
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.3, 0.6, 1.0])
    parser.add_argument("--model", default="dg-mini")
    parser.add_argument("--min-confidence", type=float, default=0.0, help="of the fill of a gap")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    folders = [folder.resolve() for folder in given.folders]
    settings = Settings(model=ModelSettings(name=given.model))
    if not given.gaps:
        print("| strength | selections | shown | broken | refused |\n|---|---|---|---|---|")
        requests = list(islice(statements(folders), given.number or 130))
        with closing(open_engine(settings)) as engine:
            for strength in given.strengths:
                print(rewrite_row(engine, requests, strength), flush=True)
        return
    print("| gaps | passes | CPU time | filled | right | files that parse | broken |\n|---|---|---|---|---|---|---|")
    cases = list(islice(gap_cases(folders), given.number or 200))
    completion = CompletionSettings(early_stop_ms=0.0, min_confidence=given.min_confidence)
    with closing(open_engine(attrs.evolve(settings, completion=completion))) as engine:
        decoders = [DecoderName.AUTOREGRESSIVE] if engine.spec.has_causal_head else []
        decoders += [DecoderName.DIFFUSION, DecoderName.INFILL] if engine.spec.sampling else []
        for decoder in decoders:
            print(gap_row(engine, cases, decoder), flush=True)


if __name__ == "__main__":
    main()
