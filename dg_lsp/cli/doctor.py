"""`dg-lsp doctor`: checks the installation and prints problems with their solutions."""

import dataclasses
import importlib.metadata
import platform
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dg_lsp import __version__
from dg_lsp.backends import llamacpp
from dg_lsp.backends.llamacpp.library import library, runs_diffusiongemma
from dg_lsp.cli import loading
from dg_lsp.cli.options import Json, ModelOptions, configure
from dg_lsp.cli.output import fill_object
from dg_lsp.cli.printing import print_facts, print_json, print_line
from dg_lsp.cli.trial import trial_fill
from dg_lsp.context.languages import missing_grammars
from dg_lsp.engine.decoder_selection import DecoderSelection, PositionKind
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import DgLspError, with_extra
from dg_lsp.models import gpus
from dg_lsp.models.registry import instruction_model
from dg_lsp.models.selection import forget_times
from dg_lsp.postprocess.validate import Reason
from dg_lsp.runtime import COMMAND
from dg_lsp.settings import Settings
from dg_lsp.settings_files import user_file, workspace_file
from dg_lsp.system import is_present, peak_bytes, system_free

REMOTE_SECONDS = 30.0
"""Time limit of the test completion by a remote model."""
_PACKAGES = ("llama-cpp-python", "pygls", "lsprotocol", "numpy", "tree-sitter-python", "torch", "transformers")
"""Listed with their versions if they are installed."""


@dataclass(slots=True)
class Checkup:
    """Results so far; a part that failed is None, and its error is one of the problems. The fields are JSON keys."""

    software: dict[str, str] = field(default_factory=dict)
    settings_files: list[str] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)  # of llama.cpp
    gpus: list[dict[str, Any]] = field(default_factory=list)  # of the machine, with or without llama.cpp
    runtime: dict[str, Any] | None = None  # the llama.cpp library that is loaded
    model: dict[str, Any] | None = None
    rewrite_model: dict[str, Any] | None = None  # of rewrites and chats, if the settings name one
    threads: int | None = None
    costs: dict[str, dict[int, float]] | None = None
    """Milliseconds of a causal pass and of a pass over a canvas, by number of tokens."""
    decoders: dict[str, str] | None = None  # the decoder that `auto` selects, by kind of position
    fill: dict[str, Any] | None = None
    memory_bytes: int | None = None  # peak memory of this process
    warnings: list[str] = field(default_factory=list)  # one line each, with a next step; the exit code stays 0
    problems: list[str] = field(default_factory=list)  # one line each, with a solution


def doctor(model: ModelOptions, as_json: Json = False) -> int:
    """Check the installation: versions, devices, the model, and a timed test completion."""
    checkup = Checkup(software=_software())
    try:
        settings = configure(model.tree, checkup.warnings.append)
        files = (user_file(), workspace_file(Path.cwd()))
        checkup.settings_files = [str(path) for path in files if path is not None and is_present(path)]
        _try_model(checkup, settings)
    except DgLspError as error:
        checkup.problems.append(str(error))
    is_python_only = (checkup.model or {}).get("languages") == ["python"]
    if (grammars := missing_grammars()) and not is_python_only:
        checkup.warnings.append(f"syntax is not checked without {', '.join(grammars)}: {with_extra('languages')}")
    checkup.memory_bytes = peak_bytes()
    tree = dataclasses.asdict(checkup)
    if as_json:
        print_json(tree)
    else:
        passes = (checkup.costs or {}).items()
        costs = {kind: {num: f"{ms:.1f} ms" for num, ms in by_tokens.items()} for kind, by_tokens in passes}
        shown = tree | {"costs": costs, "warnings": None, "problems": None}
        print_facts({name: value for name, value in shown.items() if value is not None})
        print_line(*(f"warning: {warning}" for warning in checkup.warnings))
        print_line(*([f"problem: {problem}" for problem in checkup.problems] or ["no problems found"]))
    return 3 if checkup.problems else 0


def _software() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform(), "dg-lsp": __version__}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _try_model(checkup: Checkup, settings: Settings) -> None:
    if settings.is_remote:
        _try_remote(checkup, settings)
        return
    listed, all_gpus = llamacpp.devices(), gpus.find_gpus()
    checkup.devices = [dataclasses.asdict(device) for device in listed]
    for device in checkup.devices:
        if device["kind"] == "cpu":  # llama.cpp reports all of it as free
            device["memory_free"] = system_free()
    checkup.gpus = [dataclasses.asdict(gpu) for gpu in all_gpus]
    if (unused := gpus.unused_gpu(all_gpus, [device.kind for device in listed])) is not None:
        checkup.warnings.append(unused.unused_message)
    checkup.runtime = _runtime()
    forget_times()
    start = time.perf_counter()
    model, engine = loading.open_measured(settings)
    checkup.threads = model.threads
    load_ms = 1e3 * (time.perf_counter() - start)
    chosen = loading.selected_model(settings)
    checkup.model = model.facts() | ({"selected": f"by {settings.model.name}: {chosen.reason}"} if chosen else {})
    checkup.warnings += [model.warning] if model.warning else []
    measured = {"causal": engine.costs.causal, "canvas": engine.costs.canvas}
    checkup.costs = {kind: {num: round(ms, 3) for num, ms in points} for kind, points in measured.items()}
    selections = (DecoderSelection(spec=engine.spec, costs=engine.costs, kind=kind) for kind in PositionKind)
    checkup.decoders = {selection.kind.value: selection.choose().value for selection in selections}
    with closing(engine):
        checkup.fill = fill_object(trial_fill(engine), load_ms)
        checkup.model |= _memory_of(engine)
        _try_rewrite_model(checkup, settings)  # beside the other one, as servers load it


def _try_rewrite_model(checkup: Checkup, settings: Settings) -> None:
    if settings.for_rewrites.model_key == settings.model_key:
        return
    with loading.timed_engine(settings.for_rewrites) as (engine, load_ms):
        checkup.rewrite_model = {"name": engine.spec.name} | _memory_of(engine)
        follows = engine.spec.follows_instructions
        checkup.rewrite_model |= {"follows_instructions": follows, "load_ms": round(load_ms, 3)}
    if not follows:
        problem = f"rewrite.model {engine.spec.name} follows no instructions, and answers no chats"
        checkup.warnings.append(f"{problem}: {instruction_model()} does both")


def _memory_of(engine: Engine) -> dict[str, int]:
    used = engine.footprint
    return {
        "weights_and_cache_bytes": used.weights_bytes + used.cache_bytes,
        "context_tokens": used.context_size,
        "full_cache_bytes": used.full_cache_bytes,
    }


def _try_remote(checkup: Checkup, settings: Settings) -> None:
    with closing(loading.open_engine(settings)) as engine:
        checkup.model = {"name": engine.spec.name, "url": settings.remote.url, "api": settings.remote.api}
        checkup.fill = fill_object(trial_fill(engine, REMOTE_SECONDS), 0.0)
    if checkup.fill["rejected"] == Reason.UNFINISHED:
        checkup.problems.append(f"{settings.remote.url} does not answer within {REMOTE_SECONDS:.0f} s: see its log")


def _runtime() -> dict[str, Any]:
    runtime = library().runtime
    note = library().note
    if runtime and not runs_diffusiongemma():
        note = f"an earlier version built it: run {COMMAND} again"
    return {
        "kind": "overlay" if runtime else "stock",
        "folder": str(runtime.folder) if runtime else None,
        "runs_diffusiongemma": runs_diffusiongemma(),
        "note": note,
    }
