"""The GPUs of this machine, found without llama.cpp: an installed llama.cpp lists only those that it can use.

No machine with a GPU has run this module: it is tested with outputs of the programs.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NVIDIA, AMD, INTEL, APPLE, OTHER = "nvidia", "amd", "intel", "apple", "other"
_VENDORS = {0x10DE: NVIDIA, 0x1002: AMD, 0x8086: INTEL}
"""PCI vendor ids. Display chips of servers and virtual machines have others, and compute nothing."""
_CLASSES = (0x03, 0x12)
"""PCI base classes: display controllers and processing accelerators."""
_BACKENDS = {
    NVIDIA: ("cuda", "vulkan"),
    AMD: ("hip", "vulkan"),
    INTEL: ("sycl", "vulkan"),
    APPLE: ("metal",),
    OTHER: ("vulkan",),
}
_SECONDS = 20.0
"""Time limit of a program: a driver may wake a sleeping GPU."""
_PCI = Path("/sys/bus/pci/devices")

RunProgram = Callable[[Sequence[str]], str]
"""The output of a program; the empty string if it is missing or failed."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    kind: str  # `nvidia`, `amd`, `intel`, `apple` or `other`
    name: str
    memory: int  # bytes of its own; 0 if it shares the machine's memory, or if nothing reports them

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends of llama.cpp that use it, the fastest first."""
        return _BACKENDS[self.kind]

    def __str__(self) -> str:
        return f"{self.name} ({self.memory / 1e9:.1f} GB)" if self.memory else self.name


def run_program(command: Sequence[str]) -> str:
    """Runs a program on PATH."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.decode("utf-8", "replace")


def find_gpus(run: RunProgram = run_program, pci: Path = _PCI, platform: str = sys.platform, /) -> tuple[Gpu, ...]:
    """All GPUs, those with the most memory of their own first.

    For each kind the first source counts that lists any; sizes that it does not report come from the PCI bus.
    """
    if platform == "darwin":
        return tuple(_from_system_profiler(run(("system_profiler", "SPDisplaysDataType", "-json"))))
    on_bus = tuple(_from_pci(pci))
    sources = (
        _from_nvidia_smi(run(("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"))),
        _from_rocminfo(run(("rocminfo",))),
        _from_vulkaninfo(run(("vulkaninfo", "--summary"))),
        on_bus,
    )
    found: dict[str, list[Gpu]] = {}
    for source in map(tuple, sources):
        for kind in dict.fromkeys(gpu.kind for gpu in source if gpu.kind not in found):
            found[kind] = [gpu for gpu in source if gpu.kind == kind]
    gpus = [
        gpu for kind, listed in found.items() for gpu in _with_memory(listed, [g for g in on_bus if g.kind == kind])
    ]
    return tuple(sorted(gpus, key=lambda gpu: -gpu.memory))


SLOW_LINK = 8.0
"""GB/s of PCIe below which a link counts as slow: fewer lanes than x4 of PCIe 4.0."""
_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of a lane, by generation of PCIe."""


def slow_link(numbers: Sequence[int], run: RunProgram = run_program) -> str:
    """Why the link between two NVIDIA GPUs is slow; empty where none is, or where nothing reports it.

    `numbers` are those of CUDA in this process, in the order of the layers.
    """
    real = [_real_number(number) for number in numbers]
    topology = _topology(run(("nvidia-smi", "topo", "-m")))
    query = ("nvidia-smi", "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader,nounits")
    lanes = dict(_bandwidths(run(query)))
    for one, other in itertools.pairwise(real):
        link = topology.get((one, other), "")
        if link.startswith("NV"):
            continue
        slowest = min((lanes[number] for number in (one, other) if number in lanes), default=SLOW_LINK)
        if slowest < SLOW_LINK:
            return f"GPU {one} and GPU {other} are linked by {slowest:.1f} GB/s of PCIe"
        if link == "SYS":
            return f"GPU {one} and GPU {other} are linked through two processors"
    return ""


def _real_number(number: int) -> int:
    """The number that nvidia-smi has for a GPU of this process."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = listed[number].strip() if number < len(listed) else ""
    return int(visible) if visible.isdigit() else number


def _topology(output: str) -> dict[tuple[int, int], str]:
    """The kind of each link: NV1 and more is NVLink, PIX to NODE are PCIe, SYS crosses processors."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    found = {}
    for line in plain.splitlines():
        first, *cells = line.split() or [""]
        if (row := re.fullmatch(r"GPU(\d+)", first)) and not (cells and cells[0].startswith("GPU")):
            found.update({(int(row[1]), column): cell for column, cell in enumerate(cells)})
    return found


def _bandwidths(output: str) -> Iterator[tuple[int, float]]:
    for line in output.splitlines():
        numbers = [part.strip() for part in line.split(",")]
        if len(numbers) == 3 and all(map(str.isdigit, numbers)):
            index, generation, width = map(int, numbers)
            yield index, _LANE.get(generation, _LANE[max(_LANE)]) * width


def _with_memory(gpus: Sequence[Gpu], on_bus: Sequence[Gpu]) -> Iterator[Gpu]:
    """The same GPUs, with the sizes of the bus if the source reported none."""
    is_known = any(gpu.memory for gpu in gpus) or len(gpus) != len(on_bus)
    for gpu, other in zip(gpus, gpus if is_known else on_bus, strict=True):
        yield Gpu(gpu.kind, gpu.name, gpu.memory or other.memory)


def _from_nvidia_smi(output: str) -> Iterator[Gpu]:
    for line in output.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if name:
            yield Gpu(NVIDIA, name.strip(), int(mebibytes) << 20 if mebibytes.strip().isdigit() else 0)


def _from_rocminfo(output: str) -> Iterator[Gpu]:
    for agent in re.split(r"^Agent \d+", output, flags=re.MULTILINE)[1:]:
        if re.search(r"Device Type:\s+GPU", agent):
            name = re.search(r"Marketing Name:[ \t]+(\S.*)", agent) or re.search(r"Name:[ \t]+(\S.*)", agent)
            sizes = [int(size) << 10 for size in re.findall(r"Size:\s+(\d+)\(0x[0-9a-f]+\) KB", agent)]
            yield Gpu(AMD, name[1].strip() if name else "AMD GPU", max(sizes, default=0))


def _from_vulkaninfo(output: str) -> Iterator[Gpu]:
    for part in re.split(r"^GPU\d+:", output, flags=re.MULTILINE)[1:]:
        facts = dict(re.findall(r"^\s*(\w+)\s*=\s*(\S.*?)\s*$", part, re.MULTILINE))
        if facts.get("deviceType", "").endswith(("DISCRETE_GPU", "INTEGRATED_GPU")):  # others are emulated
            kind = _VENDORS.get(int(facts.get("vendorID", "0"), 16), OTHER)
            yield Gpu(kind, facts.get("deviceName", "GPU"), 0)


def _from_system_profiler(output: str) -> Iterator[Gpu]:
    try:
        listed = json.loads(output or "{}").get("SPDisplaysDataType", ())
        names = [str(entry.get("sppci_model") or entry["_name"]) for entry in listed]
    except (ValueError, AttributeError, KeyError, TypeError):
        return
    yield from (Gpu(APPLE, name, 0) for name in names)


def _from_pci(folder: Path) -> Iterator[Gpu]:
    """From Linux, which lists GPUs without a driver too. AMD's driver reports the memory."""
    for device in sorted(folder.glob("*")):
        vendor, number = _read_number(device / "vendor"), _read_number(device / "device")
        kind = _VENDORS.get(vendor)
        if kind is not None and _read_number(device / "class") >> 16 in _CLASSES:
            name = f"{kind.upper() if kind == AMD else kind.capitalize()} GPU {vendor:04x}:{number:04x}"
            yield Gpu(kind, name, _read_number(device / "mem_info_vram_total"))


def _read_number(path: Path) -> int:
    """0 for a missing or invalid file."""
    try:
        return int(path.read_text(encoding="ascii").strip(), 0)
    except (OSError, ValueError):
        return 0


def unused_gpu(found: Iterable[Gpu], usable_kinds: Iterable[str]) -> Gpu | None:
    """The best GPU of this machine if llama.cpp uses none, or only one with less memory of its own.

    `usable_kinds` are the kinds of llama.cpp's devices: `gpu` has memory of its own, `igpu` shares the machine's.
    """
    best, kinds = next(iter(found), None), set(usable_kinds)
    if best is None or "gpu" in kinds or ("igpu" in kinds and not best.memory):
        return None
    return best
