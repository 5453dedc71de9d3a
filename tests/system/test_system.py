"""Free memory under the limits of Linux control groups, and the data folder on every system."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from dg_lsp.errors import UsageError
from dg_lsp.system import (
    GPU_VARIABLES,
    config_folder,
    data_folder,
    leave_out_relative_programs,
    pin_gpu,
    python_command,
    python_environment,
    system_free,
)

LOTS = 1 << 50


CACHED = "anon 1200\ninactive_file 1000\nactive_file 2000\nshmem 7"


@pytest.mark.parametrize(
    ("folders", "group", "expected"),
    [
        pytest.param({"": {"max": 5000, "current": 1000}}, "0::/", 4000, id="limit"),
        pytest.param({"": {"max": "max", "current": 1000}}, "0::/", LOTS, id="no limit"),
        pytest.param({"": {"max": 500, "current": 1000}}, "0::/", 0, id="above the limit"),
        pytest.param({"": {"max": 5000, "current": 4500, "stat": CACHED}}, "0::/", 3500, id="cached files are free"),
        pytest.param(
            {
                "user.slice": {"max": 3000, "current": 1000},
                "user.slice/app.service": {"max": 9000, "current": 0},
                "system.slice": {"max": 1, "current": 1},
            },
            "0::/user.slice/app.service",
            2000,
            id="smallest limit of the parents",
        ),
    ],
)
def test_the_limits_of_control_groups_count(tmp_path, monkeypatch, folders, group, expected):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Mock(available=LOTS))
    for folder, files in folders.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / f"memory.{name}").write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{group}\n")
    assert system_free(tmp_path, tmp_path / "own") == expected


def test_a_system_without_control_groups_is_supported(tmp_path):
    assert 0 < system_free(tmp_path, tmp_path / "none") < LOTS
    (tmp_path / "odd").write_text("nonsense\n1:memory\n")
    assert system_free(tmp_path, tmp_path / "odd") > 0


@pytest.fixture
def home(monkeypatch):
    for name in ("DG_LSP_DATA_DIR", "DG_LSP_CONFIG_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "LOCALAPPDATA", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("USERPROFILE", "/home/ada")


@pytest.mark.parametrize(
    ("platform", "variables", "data", "config"),
    [
        ("linux", {}, "/home/ada/.local/share", "/home/ada/.config"),
        ("linux", {"XDG_CONFIG_HOME": "config"}, "/home/ada/.local/share", "/home/ada/.config"),
        ("linux", {"XDG_DATA_HOME": "/elsewhere"}, "/elsewhere", "/home/ada/.config"),
        ("darwin", {}, *["/home/ada/Library/Application Support"] * 2),
        ("win32", {}, "/home/ada/AppData/Local", "/home/ada/AppData/Roaming"),
        ("win32", {"LOCALAPPDATA": "/elsewhere"}, "/elsewhere", "/home/ada/AppData/Roaming"),
    ],
)
def test_the_folders_are_those_of_the_system(home, platform, variables, data, config, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (data_folder(), config_folder()) == (Path(data, "dg-lsp"), Path(config, "dg-lsp"))


def test_without_a_home_no_folder_is_relative(home, monkeypatch):
    monkeypatch.setattr(Path, "expanduser", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    assert data_folder().is_absolute()
    assert config_folder().is_absolute()


def test_a_child_process_imports_the_packages_that_this_process_imports(monkeypatch, tmp_path):
    (tmp_path / "dependency_elsewhere.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    subprocess.run(python_command("dependency_elsewhere"), env=python_environment(), cwd=tmp_path.parent, check=True)


def test_relative_entries_of_the_search_path_are_left_out(monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join((".", "", "bin", "/bin", "/usr/bin")))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cuda/lib64::lib;/opt/lib")
    leave_out_relative_programs()
    assert os.environ["PATH"] == os.pathsep.join(("/bin", "/usr/bin"))
    assert os.environ["LD_LIBRARY_PATH"] == "/opt/cuda/lib64:/opt/lib"
    monkeypatch.setenv("PATH", ".")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":")
    leave_out_relative_programs()
    assert os.environ["PATH"] == os.defpath
    assert "LD_LIBRARY_PATH" not in os.environ


def test_a_pinned_process_sees_one_gpu_of_those_that_it_saw():
    plain = {}
    pin_gpu(1, plain)
    assert plain == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **dict.fromkeys(GPU_VARIABLES, "1")}
    listed = {"CUDA_VISIBLE_DEVICES": "2, GPU-8932f937", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    pin_gpu(1, listed)
    assert (listed["CUDA_VISIBLE_DEVICES"], listed["CUDA_DEVICE_ORDER"]) == ("GPU-8932f937", "FASTEST_FIRST")
    unchanged = {"CUDA_VISIBLE_DEVICES": "2,3"}
    with pytest.raises(UsageError, match="lists 2"):
        pin_gpu(2, unchanged)
    assert unchanged == {"CUDA_VISIBLE_DEVICES": "2,3"}


SERVER = """
import ctypes, threading
from dg_lsp import system
system._TRIM_SECONDS = 0.01
system.keep_heap_small()
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
held = threading.Barrier(9)
def use():
    c.malloc(1000)
    held.wait()
for _ in range(8):
    threading.Thread(target=use).start()
held.wait()
c.malloc_stats()
blocks = [c.malloc(60_000) for _ in range(1_000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
used = system.resident_bytes()
for number, block in enumerate(blocks):
    if number % 10:
        c.free(block)
while system.resident_bytes() > used - 40_000_000:
    sum(range(100_000))  # only a busy process returns memory
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap")
def test_threads_of_a_server_share_one_heap_and_it_returns_the_free_memory_between_blocks_in_use():
    """The process ends once the memory is returned."""
    process = subprocess.run([sys.executable, "-c", SERVER], stderr=subprocess.PIPE, check=True)
    assert process.stderr.count(b"Arena ") == 1
