"""Memory and utilisation of the GPUs during a measurement, by NVML. Needs `nvidia-ml-py`; without it there is none.

No GPU has run this module: it is tested with a fake NVML.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

INTERVAL = 0.1
"""Seconds between two samples."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """Of all GPUs that NVML lists, by all processes."""

    memory_bytes: int  # maximum of the sum
    utilisation: float | None  # mean share of time in which the busiest GPU ran a kernel; None: not supported


class GpuMonitor:
    """Samples the GPUs of this machine."""

    def __init__(self, nvml: Any) -> None:
        """`nvml` is the module `pynvml`, initialised."""
        self._nvml = nvml
        self._gpus = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]

    @classmethod
    def open(cls) -> Self | None:
        """None without `nvidia-ml-py`, without a driver, or without a GPU."""
        try:
            nvml: Any = import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            monitor = cls(nvml)
        except nvml.NVMLError:
            return None
        return monitor if monitor._gpus else None

    @contextmanager
    def sampling(self) -> Iterator["list[GpuUsage]"]:
        """Samples until the end of the block; the list then has one value, the usage in that time."""
        memory: list[int] = []
        shares: list[list[float]] = [[] for _ in self._gpus]
        ended, usage = threading.Event(), list[GpuUsage]()

        def run() -> None:
            while True:
                with suppress(self._nvml.NVMLError):
                    memory.append(sum(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used for gpu in self._gpus))
                for gpu, own in zip(self._gpus, shares, strict=True):
                    with suppress(self._nvml.NVMLError):
                        own.append(self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
                if ended.wait(INTERVAL):
                    return

        sampler = threading.Thread(target=run, name="dg-lsp-nvml", daemon=True)
        sampler.start()
        try:
            yield usage
        finally:
            ended.set()
            sampler.join()
            means = [sum(own) / len(own) for own in shares if own]
            if memory:
                usage.append(GpuUsage(max(memory), max(means, default=None)))
