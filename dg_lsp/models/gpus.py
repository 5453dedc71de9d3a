"""The GPUs of this machine, found without llama.cpp: an installed llama.cpp lists only those that it can use.

No machine with a GPU has run this module: it is tested with outputs of the programs.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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

    @property
    def unused_message(self) -> str:
        """The warning if the installed llama.cpp cannot use it."""
        return f"{self} IS NOT USED: this llama.cpp was built without {self.backends[0]}; run dg-lsp setup"

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
    on_bus = [*_from_pci(pci)]
    listed = [
        *_from_nvidia_smi(run(("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"))),
        *_from_vulkaninfo(run(("vulkaninfo", "--summary"))),
    ]
    gpus: list[Gpu] = []
    for kind in dict.fromkeys(gpu.kind for gpu in (*listed, *on_bus)):
        named = [gpu for gpu in listed if gpu.kind == kind]
        sized = [gpu for gpu in on_bus if gpu.kind == kind]
        if len(named) == len(sized) and not any(gpu.memory for gpu in named):
            named = [replace(gpu, memory=same.memory) for gpu, same in zip(named, sized, strict=True)]
        gpus += named or sized
    return tuple(sorted(gpus, key=lambda gpu: -gpu.memory))


def _from_nvidia_smi(output: str) -> Iterator[Gpu]:
    for line in output.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if name:
            yield Gpu(NVIDIA, name.strip(), int(mebibytes) << 20 if mebibytes.strip().isdigit() else 0)


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


def unused_gpu(gpus: Iterable[Gpu], usable_kinds: Iterable[str]) -> Gpu | None:
    """The best GPU of this machine if llama.cpp uses none, or only one with less memory of its own.

    `usable_kinds` are the kinds of llama.cpp's devices: `gpu` has memory of its own, `igpu` shares the machine's.
    """
    best, kinds = next(iter(gpus), None), set(usable_kinds)
    if best is None or "gpu" in kinds or ("igpu" in kinds and not best.memory):
        return None
    return best
