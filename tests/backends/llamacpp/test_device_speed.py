"""The speed of a device is measured by a product on it."""

import itertools

import pytest

from dg_lsp.backends.llamacpp import device_graph


def test_the_best_run_of_the_processor_counts(monkeypatch):
    monkeypatch.setattr(device_graph, "_BYTES", 34 * 128 * 100)  # 100 rows of 4,096 weights
    times = itertools.accumulate(itertools.cycle([0, 3, 0, 2, 0, 4]))
    speed = device_graph.measure(("cpu",), lambda: next(times))
    assert speed.bytes_per_second == pytest.approx(34 * 128 * 100 / 2)
    assert speed.operations_per_second == pytest.approx(2 * 4096 * 100 * 64 / 2)


def test_a_machine_without_the_device_has_no_speed():
    assert device_graph.measure(()) is None
