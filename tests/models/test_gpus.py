"""GPUs are found by made-up programs on PATH, and by a made-up folder of the PCI bus."""

import json
import sys

import pytest

from dg_lsp.models.gpus import Gpu, find_gpus, run_program, unused_gpu

NVIDIA_SMI = "NVIDIA GeForce RTX 4090, 24564\nNVIDIA GB10, [N/A]\n"
VULKANINFO = """
GPU0:
	vendorID           = 0x8086
	deviceType         = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
	deviceName         = Intel(R) Arc(tm) A770 Graphics (DG2)
GPU1:
	vendorID           = 0x10005
	deviceType         = PHYSICAL_DEVICE_TYPE_CPU
	deviceName         = llvmpipe (LLVM 15.0.7, 256 bits)
"""
PROFILER = json.dumps({"SPDisplaysDataType": [{"_name": "kHW_AppleM3", "sppci_model": "Apple M3 Max"}]})


def program(folder, name, text, code=0):
    (folder / f"{name}.txt").write_text(text)
    path = folder / name
    path.write_text(f'#!/bin/sh\n/bin/cat "{folder / name}.txt"\nexit {code}\n')
    path.chmod(0o755)


def on_bus(folder, number, vendor, kind="0x030000", memory=None):
    device = folder / f"0000:0{number}:00.0"
    device.mkdir(parents=True)
    for name, value in {"vendor": vendor, "device": "0x744c", "class": kind}.items():
        (device / name).write_text(f"{value}\n")
    if memory is not None:
        (device / "mem_info_vram_total").write_text(f"{memory}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="the programs are shell scripts")
@pytest.mark.parametrize(
    ("name", "text", "platform", "found"),
    [
        (
            "nvidia-smi",
            NVIDIA_SMI,
            "linux",
            [Gpu("nvidia", "NVIDIA GeForce RTX 4090", 24564 << 20), Gpu("nvidia", "NVIDIA GB10", 0)],
        ),
        ("vulkaninfo", VULKANINFO, "linux", [Gpu("intel", "Intel(R) Arc(tm) A770 Graphics (DG2)", 0)]),
        ("system_profiler", PROFILER, "darwin", [Gpu("apple", "Apple M3 Max", 0)]),
    ],
    ids=lambda value: value if value in ("nvidia-smi", "vulkaninfo", "system_profiler") else "",
)
def test_gpus_are_read_from_the_program_that_lists_them(monkeypatch, tmp_path, name, text, platform, found):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus(run_program, tmp_path / "none", platform) == ()
    program(tmp_path, name, text)
    assert list(find_gpus(run_program, tmp_path / "none", platform)) == found
    program(tmp_path, name, text, code=9)  # a program without its driver
    assert find_gpus(run_program, tmp_path / "none", platform) == ()


def test_gpus_without_any_program_are_read_from_the_bus(tmp_path):
    on_bus(tmp_path, 1, "0x10de", "0x030200")
    on_bus(tmp_path, 2, "0x1002", memory=16 << 30)
    on_bus(tmp_path, 3, "0x1a03")  # the display of a server
    on_bus(tmp_path, 4, "0x8086", "0x020000")  # a network card
    amd, nvidia = find_gpus(lambda _: "", tmp_path, "linux")
    assert amd == Gpu("amd", "AMD GPU 1002:744c", 16 << 30)
    assert (nvidia.kind, nvidia.name, nvidia.memory) == ("nvidia", "Nvidia GPU 10de:744c", 0)


def test_a_size_that_a_program_does_not_report_comes_from_the_bus(tmp_path):
    on_bus(tmp_path, 1, "0x1002", memory=16 << 30)
    text = VULKANINFO.replace("0x8086", "0x1002").replace("Intel(R) Arc(tm) A770 Graphics (DG2)", "RX 7800")
    found = find_gpus(lambda command: text if command[0] == "vulkaninfo" else "", tmp_path, "linux")
    assert found == (Gpu("amd", "RX 7800", 16 << 30),)


CARD, SHARED = Gpu("nvidia", "RTX", 8 << 30), Gpu("intel", "Iris", 0)


@pytest.mark.parametrize(
    ("found", "usable", "unused"),
    [
        ((), (), None),
        ((CARD,), ("cpu",), CARD),
        ((CARD, SHARED), ("cpu", "gpu"), None),
        ((CARD, SHARED), ("cpu", "igpu"), CARD),
        ((SHARED,), ("cpu", "igpu"), None),
        ((SHARED,), ("cpu",), SHARED),
    ],
)
def test_a_gpu_is_unused_if_llama_cpp_has_no_device_as_good(found, usable, unused):
    assert unused_gpu(found, usable) == unused
