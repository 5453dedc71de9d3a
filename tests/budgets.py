"""Prints the lines of Python of each part of the project beside its budget; `make check` fails above a budget.

The budgets stand in pyproject.toml, in the table `tool.dg-lsp.budgets`: globs, a budget, and the goal of the design. A
budget only falls: a change that deletes lines lowers it.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Part(NamedTuple):
    """A part of the project: its size, counted in lines or in modules, and its limits."""

    name: str
    size: int
    budget: int
    goal: int


def parts() -> Iterator[Part]:
    """All parts that have a budget."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["dg-lsp"]["budgets"]
    for name, table in tables.items():
        paths = [path for pattern in table["files"] for path in ROOT.glob(pattern)]
        if name.startswith("modules"):
            size = sum(path.name != "__init__.py" for path in paths)
        else:
            size = sum(path.read_bytes().count(b"\n") for path in paths)
        yield Part(name, size, table["budget"], table["goal"])


def main() -> int:
    """Prints the table; returns 1 if a part is above its budget, or has no files."""
    print(f"{'lines of Python':20} {'now':>7} {'budget':>7} {'goal':>7}")
    has_problem = False
    for name, size, budget, goal in parts():
        problem = f"  {size - budget:,} above the budget" if size > budget else ""
        if size == 0:
            problem = "  no files match its patterns"
        print(f"{name:20} {size:>7,} {budget:>7,} {goal:>7,}{problem}")
        has_problem |= bool(problem)
    return int(has_problem)


if __name__ == "__main__":
    sys.exit(main())
