"""What this installation is, whether its model loads, and how fast it fills. Goes on as far as it can."""

import dataclasses
import importlib.metadata
import math
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dg_lsp import __version__
from dg_lsp.cli.configuration import configure, settings_file
from dg_lsp.cli.report import rejected
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine.costs import Points, measure_costs
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.planner import PlaceKind
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import DgLspError
from dg_lsp.machine import peak_bytes
from dg_lsp.postprocess.candidate import Reason
from dg_lsp.settings import Settings

REMOTE_SECONDS = 30.0
"""What another machine's model may take for the test fill."""
_PACKAGES = ("llama-cpp-python", "pygls", "lsprotocol", "numpy", "tree-sitter-python")
_EXTRAS = ("torch", "transformers")
"""Told where they are installed: checkpoints need them."""

_BEFORE = """class Circle:
    def __init__(self, radius):
        self.radius = radius

    def diameter(self):
        return 2 * """
_AFTER = """

    def area(self):
        return 3.14159 * self.radius * self.radius
"""


@dataclass(slots=True)
class Checkup:
    """What was found so far; a part that failed stays None and is told among the problems."""

    software: dict[str, str | None] = field(default_factory=dict)
    settings_file: str | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    runtime: dict[str, Any] | None = None
    """Which llama.cpp is loaded."""
    model: dict[str, Any] | None = None
    threads: int | None = None
    costs: dict[str, dict[int, float]] | None = None
    """Milliseconds of a causal pass and of a pass over a canvas, by their tokens."""
    plans: dict[str, str] | None = None
    """What `auto` decodes by, by kind of place."""
    fill: dict[str, Any] | None = None
    memory_bytes: int | None = None
    """Most memory that this process has held."""
    problems: list[str] = field(default_factory=list)
    """Each in one line that says what to do next."""


def examine(over: Mapping[str, Any]) -> Checkup:
    """Looks at everything that a fill needs; raises nothing that dg-lsp expects."""
    checkup = Checkup(software=_software())
    checkup.problems += [
        f"{name} is not installed: install dg-lsp again, with its dependencies"
        for name, version in checkup.software.items()
        if version is None
    ]
    path = settings_file(Path.cwd())
    checkup.settings_file = str(path) if path else None
    try:
        _try_model(checkup, configure(over))
    except DgLspError as error:
        checkup.problems.append(str(error))
    checkup.memory_bytes = peak_bytes()
    return checkup


def _software() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version(), "platform": platform.platform()}
    found["dg-lsp"] = __version__
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    for name in _EXTRAS:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _try_model(checkup: Checkup, settings: Settings) -> None:
    if settings.backend == "remote":
        _try_remote(checkup, settings)
        return
    from dg_lsp.backends.llamacpp import devices
    from dg_lsp.cli.loading import load_model, open_denoiser

    checkup.devices = [dataclasses.asdict(device) for device in devices()]
    checkup.runtime = _runtime()
    start = time.perf_counter()
    model = load_model(settings)
    checkup.model = model.facts()
    denoiser = open_denoiser(model, settings)
    load_ms = 1e3 * (time.perf_counter() - start)
    checkup.threads = denoiser.threads
    costs = measure_costs(denoiser)
    checkup.costs = {"causal": _rounded(costs.causal), "canvas": _rounded(costs.canvas)}
    engine = Engine(denoiser, denoiser.tokenizer, settings.fill, costs)
    checkup.plans = {kind.value: engine.planner.choose(kind).value for kind in PlaceKind}
    try:
        checkup.fill = _timed_fill(engine, load_ms)
    finally:
        engine.close()


def _try_remote(checkup: Checkup, settings: Settings) -> None:
    from dg_lsp.cli.loading import open_engine

    engine = open_engine(settings)
    checkup.model = {"name": engine.spec.name, "url": settings.remote.url, "api": settings.remote.api}
    try:
        checkup.fill = _timed_fill(engine, 0.0, time.monotonic() + REMOTE_SECONDS)
        if checkup.fill["rejected"] == Reason.UNFINISHED:
            checkup.problems.append(
                f"{settings.remote.url} says nothing within {REMOTE_SECONDS:.0f} s: look at its log"
            )
    finally:
        engine.close()


def _runtime() -> dict[str, Any]:
    from dg_lsp.backends.llamacpp.library import library
    from dg_lsp.backends.llamacpp.probe import sees_ahead

    runtime, note = library().runtime, library().note
    return {
        "kind": runtime.kind if runtime else "stock",
        "backend": runtime.backend if runtime else "",
        "folder": str(runtime.folder) if runtime else None,
        "runs_diffusiongemma": sees_ahead(),
        "note": note,
    }


def _rounded(points: Points) -> dict[int, float]:
    return {num_tokens: round(ms, 3) for num_tokens, ms in points}


def _timed_fill(engine: Engine, load_ms: float, deadline: float = math.inf) -> dict[str, Any]:
    request = FillRequest(Snapshot("doctor.py", 0, _BEFORE + _AFTER), len(_BEFORE))
    result = engine.fill(request, deadline=deadline)
    return {
        "text": result.text,
        "rejected": rejected(result),
        "load_ms": round(load_ms, 3),
        "prefill_ms": round(result.timings.prefill, 3),
        "step_ms": round(result.timings.denoise / max(result.steps, 1), 3),
        "steps": result.steps,
        "total_ms": round(result.timings.total, 3),
        "prompt_tokens": result.prompt_tokens,
        "plan": result.plan.value,
        "canvas_length": result.canvas_length,
    }
