"""Effect of postprocessing: completions as the model wrote them, and as they are shown.

    python benchmarks/filters.py SITES.jsonl.gz [--limit 300]

Prints a Markdown table. Sites are those of `dg-lsp bench infill`, with references that parse.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

import attrs

from dg_lsp.bench.sites import Site, read_sites
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.postprocess import validate as judging
from dg_lsp.postprocess.text_edits import balance, cut_lines
from dg_lsp.settings import Settings

FAULTS = ("repeats what follows", "leaves brackets open", "indents wrongly", "adds a syntax error")


def parses(text: str) -> SyntaxError | None:
    """The syntax error of a file, or None."""
    try:
        compile(text, "site", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error
    except ValueError:
        return SyntaxError("not text")
    return None


def faults(site: Site, fill: str) -> set[str]:
    """Faults of the buffer with the completion inserted."""
    found = set()
    rest, _, below = site.suffix.partition("\n")
    following = next((line.strip() for line in below.split("\n") if line.strip()), "")
    last = fill.rstrip().split("\n")[-1].strip()
    if (len(last) > 2 and last == following) or (rest.strip() and fill.rstrip().endswith(rest.strip())):
        found.add(FAULTS[0])
    line = site.prefix[site.prefix.rfind("\n") + 1 :]
    typed, whole = balance(line + rest, "#"), balance(line + fill + rest, "#")
    if len(whole.closers) > len(typed.closers) or bool(whole.quote) > bool(typed.quote):
        found.add(FAULTS[1])
    error = parses(site.prefix + fill + site.suffix)
    if isinstance(error, IndentationError):
        found.add(FAULTS[2])
    if error is not None:
        found.add(FAULTS[3])
    return found


class Recorder:
    """Replaces `judge`, and keeps its arguments."""

    def __init__(self) -> None:
        self.raw: bytes = b""
        self.max_lines: int | None = None

    def __call__(self, fill: bytes, **more: object) -> object:
        """See `judge`."""
        self.raw, self.max_lines = fill, more["max_lines"]  # type: ignore[assignment]
        return judging.judge(fill, **more)  # type: ignore[arg-type]


def measure(engine: Engine, recorder: Recorder, sites: list[Site]) -> list[str]:
    """Lines of the table."""
    off, on, reasons, lost, won = Counter(), Counter(), Counter(), Counter(), Counter()
    for site in sites:
        snapshot = Snapshot("file:///site.py", 0, site.prefix + site.suffix)
        request = FillRequest(snapshot, len(site.prefix), max_lines=None if site.kind == "block" else 1)
        result = drain(engine.run(request))
        raw = cut_lines(recorder.raw.decode("utf-8", "replace").replace("\r\n", "\n"), recorder.max_lines)
        want = site.want.rstrip()
        if raw.strip():
            off.update(["shown", *faults(site, raw)])
            off["exact"] += raw.rstrip() == want
        if result.candidates:
            on.update(["shown", *faults(site, result.text)])
            on["exact"] += result.text.rstrip() == want
            won["shaped"] += result.text.rstrip() == want != raw.rstrip()
            lost["shaped"] += raw.rstrip() == want != result.text.rstrip()
        else:
            reason = result.rejections[0].reason.value
            reasons[reason] += 1
            lost[reason] += raw.rstrip() == want
    num = len(sites)
    lines = ["| | as the model wrote it | as it is shown |", "|---|---|---|"]
    lines += [f"| {name}, of {num} | {off[name]} | {on[name]} |" for name in ("shown", "exact")]
    for name in FAULTS:
        shares = [f"{100 * c[name] / max(1, c['shown']):.1f} %" for c in (off, on)]
        lines.append(f"| {name}, of what is shown | {shares[0]} | {shares[1]} |")
    lines += ["", "| refused because | fills | right ones among them |", "|---|---|---|"]
    lines += [f"| {reason} | {count} | {lost[reason]} |" for reason, count in reasons.most_common()]
    lines.append(f"| (shaped, not refused) | made right {won['shaped']} | made wrong {lost['shaped']} |")
    return lines


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sites", type=Path)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--model", default="dg-mini")
    arguments = parser.parse_args()
    sites = [site for site in read_sites(arguments.sites) if parses(site.prefix + site.want + site.suffix) is None]
    random.Random(0).shuffle(sites)
    settings = attrs.evolve(Settings(), model=arguments.model)
    settings = attrs.evolve(settings, fill=attrs.evolve(settings.fill, deadline_ms=60_000.0, early_stop_ms=0.0))
    engine = open_engine(settings)
    recorder = Recorder()
    import dg_lsp.engine.engine as module

    module.judge = recorder  # type: ignore[assignment]
    try:
        print("\n".join(measure(engine, recorder, sites[: arguments.limit])))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
