"""What the sandboxed process does: put the layers up, run the program, report. Started by `sandbox` alone.

The report goes over a pipe: one JSON line with the layers that hold before the program runs, one with its ending after.
A program that ends the process leaves no second line, and has not run to its end.
"""

import json
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dg_lsp.bench.sandbox import audit, landlock, seccomp
from dg_lsp.bench.sandbox.privileges import drop_capabilities, end_with_parent, enter_namespaces, limit

PROGRAM = "program.py"
"""The program's file in its directory."""
MAX_DETAIL = 200


def main(order: Mapping[str, Any]) -> None:
    """Runs the program of the working directory; never returns.

    Args:
        order: `pipe`, the descriptor for the report; `layers` wanted; `limits` by the names of `resource`.
    """
    pipe = int(order["pipe"])
    source = Path(PROGRAM).read_text(encoding="utf-8")
    held = _put_up(order["layers"], order["limits"], Path.cwd())
    _report(pipe, {"layers": held})
    _report(pipe, _run(source))
    os._exit(0)  # whatever the program left behind to be run at exit is not


def _put_up(wanted: list[str], limits: Mapping[str, int], folder: Path) -> list[str]:
    """The layers that hold; what a system has not is left out."""
    end_with_parent()
    layers: dict[str, Callable[[], None]] = {
        "namespaces": lambda: enter_namespaces(folder),  # the first, for it forks
        "limits": lambda: limit(limits),
        "capabilities": drop_capabilities,
        "landlock": lambda: landlock.restrict(folder),
        "seccomp": seccomp.restrict,
        "audit": lambda: audit.install(folder),
    }
    return [name for name, put_up in layers.items() if name in wanted and _holds(put_up)]


def _holds(put_up: Callable[[], None]) -> bool:
    try:
        put_up()
    except OSError:
        return False
    return True


def _run(source: str) -> dict[str, str]:
    """The program in a module of its own."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        exec(compile(source, PROGRAM, "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 - whatever a program ends with is an ending
        detail = f"{type(error).__name__}: {error}"
        kind = "memory" if isinstance(error, MemoryError) else "failed"
        return {"ending": kind, "detail": " ".join(detail.split())[:MAX_DETAIL]}
    return {"ending": "passed", "detail": ""}


def _report(pipe: int, tree: Mapping[str, Any]) -> None:
    os.write(pipe, json.dumps(tree).encode() + b"\n")
