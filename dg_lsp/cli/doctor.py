"""`dg-lsp doctor`: checks the installation and prints problems with their solutions."""

import dataclasses
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dg_lsp import __version__
from dg_lsp.cli.options import GpuLayers, Json, Model, Remote, Threads

if TYPE_CHECKING:
    from dg_lsp.engine.decoder_selection import Points
    from dg_lsp.engine.engine import Engine
    from dg_lsp.settings import Settings

FAILED = 3


def doctor(
    model: Model = None,
    remote: Remote = None,
    as_json: Json = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Check the installation: versions, devices, the model, and a timed test completion."""
    from dg_lsp.cli.loading import overrides

    checkup = examine(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(checkup)))
    else:
        for line in report(checkup):
            typer.echo(line)
    return FAILED if checkup.problems else 0


def report(checkup: "Checkup") -> Iterator[str]:
    """The checkup as lines of text, problems last."""
    for name, version in checkup.software.items():
        yield _row(name, version or "not installed")
    yield _row("settings file", checkup.settings_file or "none, the defaults are used")
    for device in checkup.devices:
        yield _row("device", _device(device))
    if checkup.runtime is not None:
        yield _row("runtime", _runtime(checkup.runtime))
    yield from _model(checkup.model or {})
    if checkup.threads is not None:
        yield _row("threads", str(checkup.threads))
    yield from _selection_rows(checkup.costs or {}, checkup.decoders or {})
    if checkup.memory_bytes is not None:
        yield _row("memory", f"{_megabytes(checkup.memory_bytes)} at most in this process")
    if checkup.fill is not None:
        yield from _fill(checkup.fill)
    yield from (f"problem: {problem}" for problem in checkup.problems)
    if not checkup.problems:
        yield "no problems found"


def _row(name: str, value: str) -> str:
    return f"{name:<20} {value}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


def _device(device: dict[str, Any]) -> str:
    described = f"{device['name']} ({device['kind']})"
    if not device["memory_total"]:  # some drivers do not report it
        return described
    return f"{described}, {_megabytes(device['memory_free'])} of {_megabytes(device['memory_total'])} free"


def _runtime(runtime: dict[str, Any]) -> str:
    words = [runtime["kind"], *([runtime["backend"]] if runtime["backend"] else [])]
    words += ["in", runtime["folder"]] if runtime["folder"] else []
    from dg_lsp.runtime import COMMAND

    needs = "DiffusionGemma runs" if runtime["runs_diffusiongemma"] else f"DiffusionGemma needs {COMMAND}"
    return "; ".join(filter(None, (" ".join(words), needs, runtime["note"])))


def _model(model: dict[str, Any]) -> Iterator[str]:
    for key, value in model.items():
        if key == "size_bytes":
            yield _row("model size", _megabytes(value))
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield _row(f"model {key.replace('_', ' ')}", shown)


def _selection_rows(costs: dict[str, dict[int, float]], decoders: dict[str, str]) -> Iterator[str]:
    for what, passes in costs.items():
        if passes:
            shown = ", ".join(f"{ms:.1f} ms for {num}" for num, ms in passes.items())
            yield _row(f"{what} pass", f"{shown} tokens")
    if decoders:
        yield _row("decoders", ", ".join(f"{kind}: {decoder}" for kind, decoder in decoders.items()))


def _fill(fill: dict[str, Any]) -> Iterator[str]:
    yield _row("test fill", repr(fill["text"]) if fill["rejected"] is None else f"nothing ({fill['rejected']})")
    yield _row("  load", f"{fill['load_ms']:.0f} ms")
    yield _row("  prefill", f"{fill['prefill_ms']:.1f} ms for {fill['prompt_tokens']} tokens")
    yield _row("  steps", f"{fill['steps']} of {fill['step_ms']:.1f} ms each, canvas {fill['canvas_length']}")
    yield _row("  total", f"{fill['total_ms']:.1f} ms without the load")


REMOTE_SECONDS = 30.0
"""Time limit of the test completion by a remote model."""
_PACKAGES = ("llama-cpp-python", "pygls", "lsprotocol", "numpy", "tree-sitter-python")
_EXTRAS = ("torch", "transformers")
"""Optional packages, listed if they are installed: checkpoints need them."""

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
    """Results so far. A part that failed is None, and its error is one of the problems."""

    software: dict[str, str | None] = field(default_factory=dict)
    settings_file: str | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    runtime: dict[str, Any] | None = None
    """The llama.cpp library that is loaded."""
    model: dict[str, Any] | None = None
    threads: int | None = None
    costs: dict[str, dict[int, float]] | None = None
    """Milliseconds of a causal pass and of a pass over a canvas, by number of tokens."""
    decoders: dict[str, str] | None = None
    """The decoder that `auto` selects, by kind of position."""
    fill: dict[str, Any] | None = None
    memory_bytes: int | None = None
    """Peak memory of this process."""
    problems: list[str] = field(default_factory=list)
    """One line each, with a solution."""


def examine(over: Mapping[str, Any]) -> Checkup:
    """Checks every part that a completion needs; expected errors become problems."""
    from dg_lsp.cli.loading import configure
    from dg_lsp.errors import DgLspError
    from dg_lsp.settings import settings_file
    from dg_lsp.system import peak_bytes

    checkup = Checkup(software=_software())
    checkup.problems += [
        f"{name} is not installed: reinstall dg-lsp with its dependencies"
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


def _try_model(checkup: Checkup, settings: "Settings") -> None:
    if settings.is_remote:
        _try_remote(checkup, settings)
        return
    from dg_lsp.backends.llamacpp import devices
    from dg_lsp.cli.loading import load_model, open_denoiser
    from dg_lsp.engine.decoder_selection import PositionKind, measure_costs
    from dg_lsp.engine.engine import LocalEngine

    checkup.devices = [dataclasses.asdict(device) for device in devices()]
    checkup.runtime = _runtime_checkup()
    start = time.perf_counter()
    model = load_model(settings)
    checkup.model = model.facts()
    denoiser = open_denoiser(model, settings)
    load_ms = 1e3 * (time.perf_counter() - start)
    checkup.threads = denoiser.threads
    costs = measure_costs(denoiser)
    checkup.costs = {"causal": _rounded(costs.causal), "canvas": _rounded(costs.canvas)}
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion, costs)
    checkup.decoders = {kind.value: engine.decoder_selection.choose(kind).value for kind in PositionKind}
    try:
        checkup.fill = _timed_fill(engine, load_ms)
    finally:
        engine.close()


def _try_remote(checkup: Checkup, settings: "Settings") -> None:
    from dg_lsp.cli.loading import open_engine
    from dg_lsp.postprocess.validate import Reason

    engine = open_engine(settings)
    checkup.model = {"name": engine.spec.name, "url": settings.remote.url, "api": settings.remote.api}
    try:
        checkup.fill = _timed_fill(engine, 0.0, time.monotonic() + REMOTE_SECONDS)
        if checkup.fill["rejected"] == Reason.UNFINISHED:
            checkup.problems.append(f"{settings.remote.url} does not answer within {REMOTE_SECONDS:.0f} s: see its log")
    finally:
        engine.close()


def _runtime_checkup() -> dict[str, Any]:
    from dg_lsp.backends.llamacpp.library import library
    from dg_lsp.backends.llamacpp.runtime_check import supports_bidirectional

    runtime, note = library().runtime, library().note
    return {
        "kind": runtime.kind if runtime else "stock",
        "backend": runtime.backend if runtime else "",
        "folder": str(runtime.folder) if runtime else None,
        "runs_diffusiongemma": supports_bidirectional(),
        "note": note,
    }


def _rounded(points: "Points") -> dict[int, float]:
    return {num_tokens: round(ms, 3) for num_tokens, ms in points}


def _timed_fill(engine: "Engine", load_ms: float, deadline: float = math.inf) -> dict[str, Any]:
    from dg_lsp.cli.output import rejection_reason
    from dg_lsp.context.document import Snapshot
    from dg_lsp.engine.request import FillRequest

    request = FillRequest(Snapshot("doctor.py", 0, _BEFORE + _AFTER), len(_BEFORE))
    result = engine.fill(request, deadline=deadline)
    return {
        "text": result.text,
        "rejected": rejection_reason(result),
        "load_ms": round(load_ms, 3),
        "prefill_ms": round(result.timings.prefill, 3),
        "step_ms": round(result.timings.denoise / max(result.steps, 1), 3),
        "steps": result.steps,
        "total_ms": round(result.timings.total, 3),
        "prompt_tokens": result.prompt_tokens,
        "decoder": result.decoder.value,
        "canvas_length": result.canvas_length,
    }
