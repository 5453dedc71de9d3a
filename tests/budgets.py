"""Prints the lines of Python of each part of the project beside its budget; `make check` fails above a budget.

The budgets stand in pyproject.toml, in the table `tool.dg-lsp.budgets`: globs, a budget, and the goal of the design. A
budget only falls: a change that deletes lines lowers it.
"""

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the project: its size, counted in lines or in modules, and its limits."""

    name: str
    size: int
    budget: int
    goal: int

    def line(self) -> str:
        """A row of the table."""
        excess = f"  {self.size - self.budget:,} above the budget" if self.size > self.budget else ""
        return f"{self.name:20} {self.size:>7,} {self.budget:>7,} {self.goal:>7,}{excess}"


def parts(root: Path) -> Iterator[Part]:
    """All parts that have a budget in the pyproject.toml of a folder."""
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["dg-lsp"]["budgets"]
    for name, table in tables.items():
        paths = [path for pattern in table["files"] for path in root.glob(pattern)]
        if name.startswith("modules"):
            size = sum(path.name != "__init__.py" for path in paths)
        else:
            size = sum(path.read_bytes().count(b"\n") for path in paths)
        yield Part(name, size, table["budget"], table["goal"])


def main(root: Path = ROOT) -> int:
    """Prints the table; returns 1 if a part is above its budget."""
    listed = list(parts(root))
    print(f"{'lines of Python':20} {'now':>7} {'budget':>7} {'goal':>7}")
    for part in listed:
        print(part.line())
    return int(any(part.size > part.budget for part in listed))


if __name__ == "__main__":
    sys.exit(main())
