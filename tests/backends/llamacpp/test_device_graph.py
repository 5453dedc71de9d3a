"""Devices of ggml: which one computes, and how fast it is."""

import itertools
import json
from unittest.mock import Mock

import pytest

from dg_lsp.backends.llamacpp import device_graph
from dg_lsp.backends.llamacpp.device_graph import GPU_KINDS, GraphDevice
from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.errors import BackendError


def test_the_best_run_of_the_processor_counts(monkeypatch):
    monkeypatch.setattr(device_graph, "_BYTES", 34 * 128 * 100)  # 100 rows of 4,096 weights
    times = itertools.accumulate(itertools.cycle([0, 3, 0, 2, 0, 4]))
    speed = device_graph.measure(("cpu",), lambda: next(times))
    assert speed.bytes_per_second == pytest.approx(34 * 128 * 100 / 2)
    assert speed.operations_per_second == pytest.approx(2 * 4096 * 100 * 64 / 2)


@pytest.mark.parametrize(
    ("listed", "number", "found"),
    [
        pytest.param(["cpu", "igpu", "gpu", "gpu"], 0, 2, id="first card"),
        pytest.param(["cpu", "igpu", "gpu", "gpu"], 1, 3, id="second card"),
        pytest.param(["igpu", "cpu"], 0, 0, id="GPU of the processor"),
        pytest.param(["gpu", "cpu"], 1, None, id="no second GPU"),
        pytest.param(["cpu"], 0, None, id="no GPU"),
    ],
)
def test_device_has_the_number_that_llama_cpp_has_for_it(monkeypatch, listed, number, found):
    made = [Device(f"device {index}", kind, 100 + index, 1000) for index, kind in enumerate(listed)]
    monkeypatch.setattr(device_graph, "devices", lambda: tuple(made))
    monkeypatch.setattr(device_graph.functions(), "backend_dev_get", lambda index: index)
    monkeypatch.setattr(device_graph.functions(), "backend_dev_init", lambda *_: "backend")
    device = GraphDevice.open(GPU_KINDS, number)
    assert found is None if device is None else (device.native, device.memory_free) == (found, 100 + found)


def test_the_devices_are_printed_if_one_has_no_memory_for_the_measurement(monkeypatch, capsys):
    speeds = [device_graph.DeviceSpeed(20e9, 80e9), BackendError("the device has no memory")]
    monkeypatch.setattr(device_graph, "measure", Mock(side_effect=speeds))
    monkeypatch.setattr("sys.argv", ["device_graph", "speed"])
    device_graph.main()
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cpu"]["bytes_per_second"], answer["gpu"]) == (20e9, None)
    assert answer["devices"]
