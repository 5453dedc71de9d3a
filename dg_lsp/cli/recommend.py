"""`dg-lsp models recommend`: measures this machine, and names the models for it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from dg_lsp.cli import conversion, loading
from dg_lsp.cli.printing import aligned, print_json, print_lines, size_text
from dg_lsp.cli.pull import Pull
from dg_lsp.models import gpus, registry
from dg_lsp.models.selection import Device, Machine, RankedModel, rank_models

_BYTES_OF_WEIGHT = 34 / 32
"""Of Q8_0, in which the devices are measured."""
_HEADER = ("", "model", "a line", "the first", "on", "size", "licence", "command")


@dataclass(frozen=True, slots=True)
class Measurement:
    """This machine, as measured."""

    machine: Machine  # with the GPUs that the installed llama.cpp can use
    found: tuple[gpus.Gpu, ...]  # with or without llama.cpp
    unused: gpus.Gpu | None  # the best GPU, if the installed llama.cpp cannot use it

    @property
    def machine_after_setup(self) -> Machine:
        """The same machine with a llama.cpp for the unused GPU."""
        if self.unused is None:
            return self.machine
        new = Device(self.unused.name, "gpu" if self.unused.memory else "igpu", self.unused.memory)
        return replace(self.machine, gpus=(new,))


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best models that fit into memory and disk and whose licence needs no agreement."""

    autoregressive: RankedModel | None
    diffusion: RankedModel | None

    @property
    def best(self) -> RankedModel:
        """The one with more expected useful edits; the bundled model always fits."""
        return max(filter(None, self.by_kind.values()), key=lambda model: model.useful_edits)

    @property
    def by_kind(self) -> dict[str, RankedModel | None]:
        """Both, in the order in which they are printed."""
        return {"autoregressive": self.autoregressive, "diffusion": self.diffusion}


def show_recommendation(*, as_json: bool) -> None:
    """Measures this machine, and prints the best autoregressive and the best diffusion model for it."""
    measured = measure()
    now, later = recommended(measured.machine), None
    if measured.unused is not None:
        later = recommended(measured.machine_after_setup)
    if as_json:
        print_json(_object(measured, now, later))
        return
    print_lines((*machine_lines(measured), "", *table(now)))
    if later is not None:
        print_lines(("", "with a llama.cpp for the GPU (dg-lsp setup builds it), by estimate:", *table(later)))


def measure() -> Measurement:
    """Measures cores, memory, disk, GPUs, and the speed of llama.cpp's devices. It takes seconds.

    llama.cpp runs in a child process: a driver may end the process, and `setup` replaces the library afterwards.

    Raises:
        ModelRuntimeError: llama.cpp does not run.
    """
    listed, machine = llama_devices("speed"), loading.this_machine(with_gpu=False)
    devices = [device for device in listed["devices"] if device["kind"] in ("gpu", "igpu")]
    kinds = {device["kind"] for device in devices}
    cpu, gpu = _speed(listed["cpu"]), _speed(listed["gpu"])
    usable = tuple(Device(device["name"], device["kind"], device["memory_free"], *gpu) for device in devices)
    machine = replace(machine, gpus=usable)
    if cpu:
        machine = replace(machine, memory_bandwidth=cpu[0], free_tokens=cpu[1])
    found = gpus.find_gpus()
    return Measurement(machine, found, gpus.unused_gpu(found, kinds))


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


def recommended(machine: Machine) -> Recommendation:
    """The best models for a machine. Models that are here need no free disk."""
    presets = [
        preset
        for preset in registry.PRESETS
        if not preset.terms and (registry.is_tested(preset) or Pull(preset).disk_bytes() <= machine.free_disk)
    ]
    ranked = rank_models(machine, (*registry.BUNDLED, *presets))
    diffusion = next((model for model in ranked if model.preset.is_diffusion), None)
    return Recommendation(next((model for model in ranked if not model.preset.is_diffusion), None), diffusion)


def machine_lines(measured: Measurement) -> Iterator[str]:
    """The machine as text."""
    machine = measured.machine
    rate = f"{machine.memory_bandwidth / 1e9:.1f} GB/s of weights"
    yield f"processor  {machine.cores} cores, {rate}, {machine.free_memory / 1e9:.1f} GB of memory free"
    for gpu in machine.gpus:
        memory = f", {gpu.free_memory / 1e9:.1f} GB free" if gpu.free_memory else ""
        yield f"GPU        {gpu.name}{memory}, {gpu.bandwidth / 1e9:.0f} GB/s of weights: used by llama.cpp"
    if measured.unused is not None:
        yield f"GPU        {unused_message(measured.unused)}"
    elif not machine.gpus:
        yield "GPU        none found"
    yield f"disk       {machine.free_disk / 1e9:.1f} GB free"


def unused_message(gpu: gpus.Gpu) -> str:
    """The warning for a GPU that the installed llama.cpp cannot use."""
    return f"{gpu} IS NOT USED: this llama.cpp was built without {gpu.backends[0]}; run dg-lsp setup"


def table(recommendation: Recommendation) -> Iterator[str]:
    """The recommended models as aligned columns."""
    rows: list[tuple[str, ...]] = [_HEADER]
    for kind, model in recommendation.by_kind.items():
        if model is None:
            rows.append((kind, "none fits", *[""] * 6))
            continue
        facts = _facts(model)
        times = (f"{facts[key]:,.0f} ms" for key in ("line_ms", "first_line_ms"))
        rest = (size_text(model.preset.size), facts["licence"], facts["command"])
        rows.append((kind, model.name, *times, model.device, *rest))
    yield from aligned(rows)


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


def _object(measured: Measurement, now: Recommendation, later: Recommendation | None) -> dict[str, Any]:
    """Keys in the documented order."""

    def both(recommendation: Recommendation) -> dict[str, Any]:
        return {kind: _facts(model) if model else None for kind, model in recommendation.by_kind.items()}

    return {
        "machine": asdict(measured.machine),
        "gpus": [asdict(gpu) for gpu in measured.found],
        "unused_gpu": asdict(measured.unused) if measured.unused else None,
        **both(now),
        "after_setup": both(later) if later else None,
    }
