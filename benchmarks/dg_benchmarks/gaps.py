"""Several gaps of one selection: filled together on one canvas, and one after the other by the same weights.

    python -m dg_benchmarks.gaps FOLDER... [--number 200] [--model dg-mini]

Cuts 2 to 5 gaps (statements, values, arguments) out of at most 8 lines of a Python function; prints a Markdown table.
Time is that of the processor. A gap is right if its fill equals what was cut, but for blanks.
"""

import argparse
import ast
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.context.gaps import find_gaps
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import RewriteRequest, RewriteResult
from dg_lsp.postprocess.cpython import Validity, python_validity
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

NUM_LINES = 8  # of a selection
MAX_CHARS = 60  # of a gap
MAX_FILE = 60_000  # characters
TOGETHER = DecoderName.INFILL
NAMES = {TOGETHER: "together", DecoderName.AUTOREGRESSIVE: "one after the other, autoregressive"}
NAMES |= {DecoderName.DIFFUSION: "one after the other, diffusion"}
Cut = tuple[int, int, str]  # offsets of what is cut, and its placeholder


@dataclass(frozen=True, slots=True)
class Case:
    """A selection with gaps."""

    request: RewriteRequest
    cut: tuple[str, ...]  # what stood in each gap


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way to fill a selection."""

    result: RewriteResult
    seconds: float  # of the processor
    num_right: int
    parses: bool
    is_broken: bool  # it parsed with its gaps, and does not any more


def cuts_of(text: str) -> Iterator[Cut]:
    """Statements, values and arguments of functions that stand on one line."""
    starts = [0, *(index + 1 for index, char in enumerate(text) if char == "\n")]
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        for part in ast.walk(node):
            placeholders: list[tuple[ast.expr | ast.stmt | None, str]] = []
            if isinstance(part, ast.Assign | ast.Return):
                placeholders = [(part.value, "..."), (part, "pass")]
            elif isinstance(part, ast.Expr | ast.AugAssign) and not isinstance(part.value, ast.Constant):
                placeholders = [(part, "pass")]
            elif isinstance(part, ast.Call) and len(part.args) > 1:
                placeholders = [(argument, "") for argument in part.args[:-1] if not isinstance(argument, ast.Starred)]
            for missing, placeholder in placeholders:
                if missing is not None and missing.lineno == missing.end_lineno and missing.end_col_offset is not None:
                    line_start = starts[missing.lineno - 1]
                    yield line_start + missing.col_offset, line_start + missing.end_col_offset, placeholder


def cases(folders: Sequence[Path], number: int) -> Iterator[Case]:
    """Seeded selections of files that Python compiles."""
    draw = random.Random(0)
    cases = (case_of(uri, text, draw) for uri, text in drawn_files(folders, draw))
    return islice((case for case in cases if case is not None), number)


def drawn_files(folders: Sequence[Path], draw: random.Random) -> Iterator[tuple[str, str]]:
    """URI and text of random files in ASCII that Python compiles, without end."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    while True:
        path = draw.choice(paths)
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.isascii() and len(text) <= MAX_FILE and python_validity(text) is Validity.COMPILES:
            yield path.as_uri(), text


def case_of(uri: str, text: str, draw: random.Random) -> Case | None:
    """A selection of the file, or None where there are too few gaps or other placeholders."""
    cuts = sorted({cut for cut in cuts_of(text) if 2 < cut[1] - cut[0] <= MAX_CHARS})
    if not cuts:
        return None
    start = text.rfind("\n", 0, draw.choice(cuts)[0]) + 1
    end = len("\n".join(text[start:].split("\n")[:NUM_LINES])) + start
    nearby = [cut for cut in cuts if start <= cut[0] and cut[1] <= end]
    draw.shuffle(nearby)
    wanted = draw.randint(2, 5)
    chosen = list[Cut]()
    for cut in nearby:
        # at most one on a line
        lines = {text.count("\n", 0, span[0]) for span in chosen}
        if len(chosen) < wanted and text.count("\n", 0, cut[0]) not in lines:
            chosen.append(cut)
    chosen.sort()
    new = text
    moved = 0
    for first, last, placeholder in chosen:
        new = new[: first + moved] + placeholder + new[last + moved :]
        moved += len(placeholder) - (last - first)
    snapshot = Snapshot(uri, 0, new)
    gaps = find_gaps(snapshot, start, end + moved)
    if len(chosen) < 2 or len(gaps) != len(chosen):
        return None
    return Case(RewriteRequest(snapshot, start, end + moved, gaps=gaps), tuple(text[a:b] for a, b, _ in chosen))


def fill(engine: Engine, case: Case, decoder: DecoderName) -> Outcome:
    """Fills all gaps of a selection."""
    request = replace(case.request, decoder=decoder)
    began = time.process_time()
    result = drain(engine.rewrite(request))
    seconds = time.process_time() - began
    text = request.snapshot.text
    new = text[: result.start] + result.text + text[result.end :] if result.reason is None else text
    num_right = sum(gap.text.split() == cut.split() for gap, cut in zip(result.gaps, case.cut, strict=True))
    parses = python_validity(new) > Validity.INVALID
    return Outcome(result, seconds, num_right, parses, not parses and python_validity(text) > Validity.INVALID)


def row(decoder: DecoderName, outcomes: Sequence[Outcome]) -> str:
    """A line of the table."""
    num_gaps = sum(len(outcome.result.gaps) for outcome in outcomes)
    num_filled = sum(gap.reason is None for outcome in outcomes for gap in outcome.result.gaps)
    num_right, num_parsed = sum(outcome.num_right for outcome in outcomes), sum(outcome.parses for outcome in outcomes)
    passes = sum(outcome.result.steps for outcome in outcomes) / len(outcomes)
    milliseconds = 1e3 * sum(outcome.seconds for outcome in outcomes) / len(outcomes)
    return (
        f"| {NAMES[decoder]} | {passes:.1f} | {milliseconds:.0f} ms | {num_filled} of {num_gaps} | {num_right}"
        f" | {num_parsed} of {len(outcomes)} | {sum(outcome.is_broken for outcome in outcomes)} |"
    )


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--model", default="dg-mini")
    parser.add_argument("--min-confidence", type=float, default=0.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    completion = CompletionSettings(deadline_ms=60_000.0, early_stop_ms=0.0, min_confidence=arguments.min_confidence)
    engine = open_engine(Settings(model=ModelSettings(name=arguments.model), completion=completion))
    chosen = list(cases([folder.resolve() for folder in arguments.folders], arguments.number))
    print("| gaps | passes | CPU time | filled | right | files that parse | broken |\n|---|---|---|---|---|---|---|")
    decoders = [DecoderName.AUTOREGRESSIVE] if engine.spec.has_causal_head else []
    decoders += [DecoderName.DIFFUSION, TOGETHER] if engine.spec.sampling else []
    try:
        for decoder in decoders:
            outcomes = [fill(engine, case, decoder) for case in chosen]
            print(row(decoder, outcomes), flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
