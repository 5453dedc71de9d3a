"""What a process may still take, as Linux and its control groups say it."""

import subprocess
import sys

import pytest

from dg_lsp import system
from dg_lsp.system import system_free

LOTS = 1 << 50


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A tree of control groups, and the file that says in which of them this process is."""
    monkeypatch.setattr(system, "_available", lambda: LOTS)
    monkeypatch.setattr(system, "_address_space", lambda: LOTS)

    class Groups:
        own = tmp_path / "own"

        def put(self, folder="", **files):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (tmp_path / folder / f"memory.{name}").write_text(f"{text}\n")

        def free(self, *lines):
            self.own.write_text("\n".join(lines) + "\n")
            return system_free(tmp_path, self.own)

    return Groups()


def test_a_limit_of_a_container_is_kept(groups):
    groups.put(max=5000, current=1000)
    assert groups.free("0::/") == 4000
    groups.put(max="max")
    assert groups.free("0::/") == LOTS
    groups.put(max=500)
    assert groups.free("0::/") == 0


def test_files_that_are_only_kept_count_as_free(groups):
    groups.put(max=5000, current=4500, stat="anon 1200\ninactive_file 1000\nactive_file 2000\nshmem 7")
    assert groups.free("0::/") == 3500


def test_the_tightest_group_on_the_way_up_decides(groups):
    groups.put("user.slice", max=3000, current=1000)
    groups.put("user.slice/app.service", max=9000, current=0)
    groups.put("system.slice", max=1, current=1)
    assert groups.free("0::/user.slice/app.service") == 2000


def test_groups_of_the_first_version(groups):
    stat = "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 10"
    groups.put("memory/docker/ab", limit_in_bytes=4000, usage_in_bytes=1000, stat=stat)
    assert groups.free("5:cpu,cpuacct:/", "4:memory:/docker/ab", "0::/") == 3110
    groups.put("memory", limit_in_bytes=2000, usage_in_bytes=500)
    assert groups.free("4:memory:/docker/of/the/host") == 1500, "in a container its own group is the mount"


def test_systems_without_groups(tmp_path):
    assert 0 < system_free(tmp_path, tmp_path / "none") < LOTS
    (tmp_path / "odd").write_text("nonsense\n1:memory\n")
    assert system_free(tmp_path, tmp_path / "odd") > 0


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/meminfo")
def test_linux_is_asked_without_another_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert system._available() > 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold it")
def test_the_limit_of_the_process_is_kept():
    script = (
        "import resource; from dg_lsp.system import system_free;"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); print(system_free())"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(said.stdout) < 1 << 30
