"""Effect of postprocessing: faults of completions before and after it.

    python benchmarks/filters.py CASES.jsonl.gz [--limit 300]

Prints Markdown tables. The cases are those of `dg-lsp bench infill`, with references that parse; no deadline or early
stop shortens a completion. The last table has what automatic requests hide, and what they would hide of the references,
which people wrote; a completion is right there if its first line is.
"""

import argparse
import math
import random
from collections import Counter
from pathlib import Path

from dg_lsp.bench.dataset import TestCase, read_cases
from dg_lsp.bench.metrics import first_lines_match
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.context.languages import language_of
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.postprocess import validate as judging
from dg_lsp.postprocess.brackets import balance
from dg_lsp.postprocess.text_edits import cut_lines
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

FAULTS = ("repeats the suffix", "leaves brackets open", "indents wrongly", "adds a syntax error")


def syntax_error(text: str) -> SyntaxError | None:
    """The syntax error of a source text, or None."""
    try:
        compile(text, "case", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error
    except ValueError:
        return SyntaxError("not text")
    return None


def faults(case: TestCase, fill: str) -> set[str]:
    """Faults of the buffer with the completion inserted."""
    found = set()
    rest, _, below = case.suffix.partition("\n")
    following = next((line.strip() for line in below.split("\n") if line.strip()), "")
    last = fill.rstrip().split("\n")[-1].strip()
    if (len(last) > 2 and last == following) or (rest.strip() and fill.rstrip().endswith(rest.strip())):
        found.add(FAULTS[0])
    line = case.prefix[case.prefix.rfind("\n") + 1 :]
    typed, whole = (balance(text, language_of("python")) for text in (line + rest, line + fill + rest))
    if len(whole.closers) > len(typed.closers) or bool(whole.quote) > bool(typed.quote):
        found.add(FAULTS[1])
    error = syntax_error(case.prefix + fill + case.suffix)
    if isinstance(error, IndentationError):
        found.add(FAULTS[2])
    if error is not None:
        found.add(FAULTS[3])
    return found


class Recorder:
    """Replaces `judge` and records its arguments."""

    def __init__(self) -> None:
        self.raw: bytes = b""
        self.max_lines: int | None = None

    def __call__(self, fill: bytes, **more: object) -> object:
        """See `judge`."""
        self.raw, self.max_lines = fill, more["max_lines"]  # type: ignore[assignment]
        return judging.judge(fill, **more)  # type: ignore[arg-type]


def measure(engine: Engine, recorder: Recorder, cases: list[TestCase]) -> list[str]:
    """Lines of the table."""
    off, on, reasons, lost, won = Counter(), Counter(), Counter(), Counter(), Counter()
    for case in cases:
        snapshot = Snapshot("file:///case.py", 0, case.prefix + case.suffix)
        max_lines = None if case.kind == "block" else 1
        request = FillRequest(snapshot, len(case.prefix), max_lines=max_lines, priority=Priority.INVOKED)
        result = engine.fill(request, deadline=math.inf)
        raw = cut_lines(recorder.raw.decode("utf-8", "replace").replace("\r\n", "\n"), recorder.max_lines)
        reference = case.reference.rstrip()
        if raw.strip():
            off.update(["shown", *faults(case, raw)])
            off["exact"] += raw.rstrip() == reference
        if result.candidates:
            on.update(["shown", *faults(case, result.text)])
            on["exact"] += result.text.rstrip() == reference
            won["changed"] += result.text.rstrip() == reference != raw.rstrip()
            lost["changed"] += raw.rstrip() == reference != result.text.rstrip()
        else:
            reason = result.rejections[0].reason.value
            reasons[reason] += 1
            lost[reason] += raw.rstrip() == reference
    num = len(cases)
    lines = ["| | before postprocessing | after postprocessing |", "|---|---|---|"]
    lines += [f"| {name}, of {num} | {off[name]} | {on[name]} |" for name in ("shown", "exact")]
    for name in FAULTS:
        shares = [f"{100 * c[name] / max(1, c['shown']):.1f} %" for c in (off, on)]
        lines.append(f"| {name}, of the shown completions | {shares[0]} | {shares[1]} |")
    lines += ["", "| reason of rejection | rejected | right among them |", "|---|---|---|"]
    lines += [f"| {reason} | {count} | {lost[reason]} |" for reason, count in reasons.most_common()]
    lines.append(f"| (changed, not rejected) | corrected: {won['changed']} | made wrong: {lost['changed']} |")
    return lines


def hidden(engine: Engine, cases: list[TestCase], least: float) -> list[str]:
    """Lines of the table of completions that an automatic request hides, with the request of the language server."""
    wrong, right, written = Counter[str](), Counter[str](), Counter[str]()
    for case in cases:
        request = FillRequest(case.snapshot, case.offset, priority=Priority.INVOKED)
        for best in engine.fill(request, deadline=math.inf).candidates:
            fault = "(shown)" if best.fault is None else best.fault.value
            reason = fault if best.confidence >= least else f"below {least:g}"
            (right if first_lines_match(best.text, case.reference) else wrong)[reason] += 1
        where = {"snapshot": case.snapshot, "offset": case.offset, "cursor": request.cursor}
        verdict = judging.judge(case.reference.encode(), **where, max_lines=None, score=0.0, check_syntax=True)
        refused = verdict.fault if isinstance(verdict, judging.Candidate) else verdict.reason
        written[refused.value if refused else "(shown)"] += 1
    reasons = sorted({*wrong, *right, *written}, key=lambda reason: -wrong[reason])
    return [
        f"| hidden unasked, of {len(cases)} | wrong | right | references |",
        "|---|---|---|---|",
        *(f"| {reason} | {wrong[reason]} | {right[reason]} | {written[reason]} |" for reason in reasons),
    ]


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--model", default="dg-mini")
    arguments = parser.parse_args()
    cases = [
        case for case in read_cases(arguments.cases) if syntax_error(case.prefix + case.reference + case.suffix) is None
    ]
    random.Random(0).shuffle(cases)
    completion = CompletionSettings()
    settings = Settings(model=ModelSettings(name=arguments.model), completion=completion)
    engine = open_engine(settings)
    recorder = Recorder()
    import dg_lsp.engine.engine as module

    module.judge = recorder  # type: ignore[assignment]
    try:
        print("\n".join(measure(engine, recorder, cases[: arguments.limit])))
        print("\n".join(["", *hidden(engine, cases[: arguments.limit], completion.min_confidence)]))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
