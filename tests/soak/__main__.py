"""Runs the campaigns, one after another, and prints their figures.

`python -m soak [NAMES...] [--minutes M] [--seed N] [-o FILE.json]`, in tests/ with the project on PYTHONPATH. Each
campaign is a module with `run(seconds, seed, most=inf)`, which returns the dict of `figures_of` and `peak_mib`.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from soak.figures import FAILURES

CAMPAIGNS = ("messages", "gguf", "web", "traps", "daemons", "editors")
COLUMNS = ("messages", "seconds", *FAILURES, "peak_mib")


def main():
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(prog="soak", description="Runs campaigns of hostile input.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"campaigns: {', '.join(CAMPAIGNS)}; default all")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all campaigns together (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write all figures")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in CAMPAIGNS]:
        parser.error(f"no campaign named {', '.join(unknown)}; there are {', '.join(CAMPAIGNS)}")
    names = given.names or CAMPAIGNS
    figures = {}
    for name in names:
        try:
            campaign = importlib.import_module(f"soak.{name}")
        except ImportError as error:
            print(f"{name} is skipped: {error}", file=sys.stderr)
            continue
        print(f"{name}: {given.minutes / len(names):.1f} minutes", file=sys.stderr, flush=True)
        figures[name] = campaign.run(60 * given.minutes / len(names), given.seed)
        for example in figures[name].get("examples", ()):
            print(f"{name}: {example}", file=sys.stderr)
    if given.output:
        given.output.write_text(json.dumps(figures, indent=2) + "\n")
    Console(width=None if sys.stdout.isatty() else 120).print(table(figures, given.seed))
    has_failed = any(one.get(key) for one in figures.values() for key in FAILURES)
    return 1 if has_failed or not figures else 0


def table(figures, seed):
    """The figures of all campaigns, one in each row."""
    drawn = Table("campaign", *(key.replace("_", " ") for key in COLUMNS), caption=f"seed {seed}")
    for name, one in figures.items():
        cells = [f"{one.get(key, 0):,}" for key in COLUMNS]
        drawn.add_row(name, *cells, style="red" if any(one.get(key) for key in FAILURES) else None)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
