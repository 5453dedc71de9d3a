"""GPUs are found by a program in place of nvidia-smi, and by a folder like that of the PCI bus."""

import sys

import pytest

from dg_lsp.models.gpus import Gpu, find_gpus, unused_gpu

NVIDIA_SMI = "NVIDIA GeForce RTX 4090, 24564\nNVIDIA GB10, [N/A]\n"


def on_bus(folder, number, vendor, kind="0x030000", memory=None):
    device = folder / f"0000:0{number}:00.0"
    device.mkdir(parents=True)
    for name, value in {"vendor": vendor, "device": "0x744c", "class": kind}.items():
        (device / name).write_text(f"{value}\n")
    if memory is not None:
        (device / "mem_info_vram_total").write_text(f"{memory}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_the_gpus_that_nvidia_smi_lists_come_before_those_of_the_bus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    on_bus(tmp_path / "bus", 1, "0x10de", "0x030200")
    on_bus(tmp_path / "bus", 2, "0x1002", memory=16 << 30)
    on_bus(tmp_path / "bus", 3, "0x1a03")  # the display of a server
    on_bus(tmp_path / "bus", 4, "0x8086", "0x020000")  # a network card
    amd, nvidia = Gpu("amd", "AMD GPU 1002:744c", 16 << 30), Gpu("nvidia", "Nvidia GPU 10de:744c", 0)
    assert find_gpus(tmp_path / "bus", "linux") == (amd, nvidia)
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{NVIDIA_SMI}'\n")
    program.chmod(0o755)
    listed = (Gpu("nvidia", "NVIDIA GeForce RTX 4090", 24564 << 20), amd, Gpu("nvidia", "NVIDIA GB10", 0))
    assert find_gpus(tmp_path / "bus", "linux") == listed
    program.write_text(f"#!/bin/sh\necho '{NVIDIA_SMI}'\nexit 9\n")  # without its driver
    assert find_gpus(tmp_path / "bus", "linux") == (amd, nvidia)
    assert [gpu.backend for gpu in find_gpus(platform="darwin")] == ["metal"], "every Mac has one"


CARD, SHARED = Gpu("nvidia", "RTX", 8 << 30), Gpu("intel", "Iris", 0)
APU = Gpu("amd", "APU", 1 << 29)


@pytest.mark.parametrize(
    ("gpus", "usable", "unused"),
    [
        ((), (), None),
        ((CARD,), ("cpu",), CARD),
        ((CARD, SHARED), ("cpu", "gpu"), None),
        ((CARD, SHARED), ("cpu", "igpu"), CARD),
        ((SHARED,), ("cpu", "igpu"), None),
        ((SHARED,), ("cpu",), SHARED),
        ((APU,), ("cpu", "igpu"), None),
        ((APU,), ("cpu",), APU),
    ],
)
def test_a_gpu_is_unused_if_llama_cpp_has_no_device_as_good(gpus, usable, unused):
    assert unused_gpu(gpus, usable) == unused
