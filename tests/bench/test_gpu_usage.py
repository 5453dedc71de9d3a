import sys
from types import SimpleNamespace

import pytest
from gates import wait_until

from dg_lsp.bench.gpu_usage import GpuMonitor, GpuUsage


class NvmlError(Exception):
    pass


class FakeNvml:
    """As much of `pynvml` as is used: GPUs by (used bytes, utilisation in percent)."""

    NVMLError = NvmlError

    def __init__(self, *gpus, init=None):
        self.gpus, self.init, self.num_samples = gpus, init, 0

    def nvmlInit(self):  # noqa: N802
        if self.init:
            raise self.init

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        self.num_samples += 1
        return SimpleNamespace(used=self.gpus[gpu][0])

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        if self.gpus[gpu][1] is None:
            raise NvmlError
        return SimpleNamespace(gpu=self.gpus[gpu][1])


@pytest.mark.parametrize(
    "nvml", [None, FakeNvml(init=NvmlError()), FakeNvml()], ids=["no package", "no driver", "no GPU"]
)
def test_without_a_gpu_there_is_no_monitor(monkeypatch, nvml):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert GpuMonitor.open() is None


@pytest.mark.parametrize(("shares", "utilisation"), [((20, 90), 0.9), ((None, 50), 0.5), ((None, None), None)])
def test_memory_of_all_gpus_and_utilisation_of_the_busiest(monkeypatch, shares, utilisation):
    nvml = FakeNvml((3_000_000_000, shares[0]), (1_000_000_000, shares[1]))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with GpuMonitor.open().sampling() as usage:
        wait_until(lambda: nvml.num_samples > 2)
        assert usage == []
    [found] = usage
    assert found.memory_bytes == 4_000_000_000
    assert found.utilisation == (utilisation if utilisation is None else pytest.approx(utilisation))
    assert isinstance(found, GpuUsage)
