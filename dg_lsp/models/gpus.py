"""The GPUs of this machine, found without llama.cpp: an installed llama.cpp lists only those that it can use.

No machine with a GPU has run this module: it is tested with outputs of nvidia-smi and folders like the PCI bus.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import size_text
from dg_lsp.system import read_number

NVIDIA, AMD, INTEL, APPLE = "nvidia", "amd", "intel", "apple"
_VENDORS = {0x10DE: NVIDIA, 0x1002: AMD, 0x8086: INTEL}
"""PCI vendor ids. Display chips of servers and virtual machines have others, and compute nothing."""
_CLASSES = (0x03, 0x12)  # PCI base classes: display controllers and processing accelerators
_BACKENDS = {NVIDIA: "cuda", AMD: "hip", INTEL: "sycl", APPLE: "metal"}
_SECONDS = 20.0  # time limit of nvidia-smi: a driver may wake a sleeping GPU
_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    kind: str  # `nvidia`, `amd`, `intel` or `apple`
    name: str
    memory: int  # bytes of its own; 0 if it shares the machine's memory, or if nothing reports them

    @property
    def backend(self) -> str:
        """The fastest backend of llama.cpp that uses it."""
        return _BACKENDS[self.kind]

    @property
    def unused_message(self) -> str:
        """The warning if the installed llama.cpp cannot use it."""
        return f"{self} IS NOT USED: this llama.cpp was built without {self.backend}; run dg-lsp setup"

    def __str__(self) -> str:
        return f"{self.name} ({size_text(self.memory)})" if self.memory else self.name


def find_gpus(pci: Path = _PCI, platform: str = sys.platform) -> tuple[Gpu, ...]:
    """All GPUs, those with the most memory of their own first: of NVIDIA's those that nvidia-smi lists, if it does."""
    if platform == "darwin":  # every Mac has one
        return (Gpu(APPLE, "Apple GPU", 0),)
    listed = list(_from_nvidia_smi())
    listed += [gpu for gpu in _from_pci(pci) if gpu.kind != NVIDIA or not listed]
    return tuple(sorted(listed, key=lambda gpu: -gpu.memory))


def _from_nvidia_smi() -> Iterator[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    try:
        process = subprocess.run(
            [program, *_QUERY], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return
    for line in process.stdout.decode("utf-8", "replace").splitlines():
        name, _, mebibytes = line.rpartition(",")
        if name:
            yield Gpu(NVIDIA, name.strip(), int(mebibytes) << 20 if mebibytes.strip().isdigit() else 0)


def _from_pci(folder: Path) -> Iterator[Gpu]:
    """From Linux, which lists GPUs without a driver too. AMD's driver reports the memory."""
    for device in sorted(folder.glob("*")):
        vendor, number, category, memory = (
            read_number(device / name) or 0 for name in ("vendor", "device", "class", "mem_info_vram_total")
        )
        kind = _VENDORS.get(vendor)
        if kind is not None and category >> 16 in _CLASSES:
            name = f"{kind.upper() if kind == AMD else kind.capitalize()} GPU {vendor:04x}:{number:04x}"
            yield Gpu(kind, name, memory)


def unused_gpu(gpus: Iterable[Gpu], usable_kinds: Iterable[str]) -> Gpu | None:
    """The best GPU of this machine if llama.cpp uses none, or only one with less memory of its own.

    `usable_kinds` are the kinds of llama.cpp's devices: `gpu` has memory of its own, `igpu` shares the machine's.
    """
    listed, kinds = tuple(gpus), set(usable_kinds)
    # a single GPU is the one that llama.cpp lists, even if its driver reports a part of the machine's memory as its own
    if not listed or "gpu" in kinds or ("igpu" in kinds and (len(listed) == 1 or not listed[0].memory)):
        return None
    return listed[0]
