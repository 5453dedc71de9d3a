"""`dg-lsp doctor`: what is installed, whether it works, and what to do when it does not."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from dg_lsp.cli.options import GpuLayers, Json, Model, Remote, Threads
from dg_lsp.runtime import COMMAND

if TYPE_CHECKING:
    from dg_lsp.cli.checkup import Checkup

FAILED = 3


def doctor(
    model: Model = None,
    remote: Remote = None,
    as_json: Json = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Check this installation: versions, devices, the model, and a timed test fill."""
    import dataclasses

    from dg_lsp.cli.checkup import examine
    from dg_lsp.cli.configuration import overrides

    checkup = examine(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(checkup)))
    else:
        for line in report(checkup):
            typer.echo(line)
    return FAILED if checkup.problems else 0


def report(checkup: "Checkup") -> Iterator[str]:
    """The checkup as lines for a person, problems last."""
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
    yield from _planning(checkup.costs or {}, checkup.plans or {})
    if checkup.memory_bytes is not None:
        yield _row("memory", f"{_megabytes(checkup.memory_bytes)} at most in this process")
    if checkup.fill is not None:
        yield from _fill(checkup.fill)
    yield from (f"problem: {problem}" for problem in checkup.problems)
    if not checkup.problems:
        yield "all is well"


def _row(name: str, value: str) -> str:
    return f"{name:<20} {value}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


def _device(device: dict[str, Any]) -> str:
    described = f"{device['name']} ({device['kind']})"
    if not device["memory_total"]:  # some drivers do not say
        return described
    return f"{described}, {_megabytes(device['memory_free'])} of {_megabytes(device['memory_total'])} free"


def _runtime(runtime: dict[str, Any]) -> str:
    words = [runtime["kind"], *([runtime["backend"]] if runtime["backend"] else [])]
    words += ["in", runtime["folder"]] if runtime["folder"] else []
    needs = "DiffusionGemma runs" if runtime["runs_diffusiongemma"] else f"DiffusionGemma needs {COMMAND}"
    return "; ".join(filter(None, (" ".join(words), needs, runtime["note"])))


def _model(model: dict[str, Any]) -> Iterator[str]:
    for key, value in model.items():
        if key == "size_bytes":
            yield _row("model size", _megabytes(value))
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield _row(f"model {key.replace('_', ' ')}", shown)


def _planning(costs: dict[str, dict[int, float]], plans: dict[str, str]) -> Iterator[str]:
    for what, passes in costs.items():
        if passes:
            shown = ", ".join(f"{ms:.1f} ms for {num}" for num, ms in passes.items())
            yield _row(f"{what} pass", f"{shown} tokens")
    if plans:
        yield _row("plans", ", ".join(f"{kind}: {plan}" for kind, plan in plans.items()))


def _fill(fill: dict[str, Any]) -> Iterator[str]:
    yield _row("test fill", repr(fill["text"]) if fill["rejected"] is None else f"nothing ({fill['rejected']})")
    yield _row("  load", f"{fill['load_ms']:.0f} ms")
    yield _row("  prefill", f"{fill['prefill_ms']:.1f} ms for {fill['prompt_tokens']} tokens")
    yield _row("  steps", f"{fill['steps']} of {fill['step_ms']:.1f} ms each, canvas {fill['canvas_length']}")
    yield _row("  total", f"{fill['total_ms']:.1f} ms without the load")
