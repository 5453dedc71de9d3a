"""Runs the campaigns, one after another, and prints their figures.

`python -m soak [NAMES...] [--minutes M] [--seed N] [-o FILE.json]`, in tests/ with the project on PYTHONPATH. Each
campaign is a module with `campaign(figures, folder, seed)`, see `figures.run`.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from soak.figures import FAILURES, run

CAMPAIGNS = ("messages", "gguf", "web", "traps")
COLUMNS = ("messages", "seconds", *FAILURES, "peak_mib")


def main():
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(prog="soak", description="Runs campaigns of hostile input.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"campaigns: {', '.join(CAMPAIGNS)}; default all")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all campaigns together (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write all figures")
    given = parser.parse_args()
    names = given.names or CAMPAIGNS
    table = Table("campaign", *(key.replace("_", " ") for key in COLUMNS), caption=f"seed {given.seed}")
    results = {}
    for name in names:
        module = importlib.import_module(f"soak.{name}")
        print(f"{name}: {given.minutes / len(names):.1f} minutes", file=sys.stderr, flush=True)
        result = results[name] = run(module.campaign, given.seed, 60 * given.minutes / len(names))
        for example in result["examples"]:
            print(f"{name}: {example}", file=sys.stderr)
        style = "red" if any(result[key] for key in FAILURES) else None
        table.add_row(name, *(f"{result[key]:,}" for key in COLUMNS), style=style)
    if given.output:
        given.output.write_text(json.dumps(results, indent=2) + "\n")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return int(any(result[key] for result in results.values() for key in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
