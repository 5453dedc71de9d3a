"""Runs the campaigns, one after another, and prints their figures.

`python -m soak [NAMES...] [--minutes M] [--seed N]`, in tests/ with the project on PYTHONPATH. Each
campaign is a module with `campaign(figures, folder, seed)`, see `figures.run`.
"""

import argparse
import importlib
import sys

from soak.figures import FAILURES, run

CAMPAIGNS = ("messages", "gguf", "web", "traps")
COLUMNS = ("messages", "seconds", *FAILURES, "peak_mib")


def main():
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(prog="soak", description="Runs campaigns of hostile input.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"campaigns: {', '.join(CAMPAIGNS)}; default all")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all campaigns together (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = given.names or CAMPAIGNS
    has_failed = False
    for name in names:
        module = importlib.import_module(f"soak.{name}")
        print(f"{name}: {given.minutes / len(names):.1f} minutes", file=sys.stderr, flush=True)
        result = run(module.campaign, given.seed, 60 * given.minutes / len(names))
        for example in result["examples"]:
            print(f"{name}: {example}", file=sys.stderr)
        has_failed |= any(result[key] for key in FAILURES)
        print(f"{name}, seed {given.seed}: {', '.join(f'{result[key]:,} {key}' for key in COLUMNS)}")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
