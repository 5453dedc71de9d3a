"""How fast the devices of ggml are."""

import json
from unittest.mock import Mock

import pytest

from dg_lsp.backends.llamacpp import device_graph
from dg_lsp.backends.llamacpp.library import devices
from dg_lsp.errors import BackendError

[PROCESSOR] = (device for device in devices() if device.kind == "cpu")


def test_a_device_without_the_operation_is_an_error(monkeypatch):
    """The operation would end the process."""
    monkeypatch.setattr(device_graph.functions(), "backend_dev_supports_op", lambda *_: False)
    with pytest.raises(BackendError, match="lacks an operation"):
        device_graph.measure(PROCESSOR)


def test_the_devices_are_printed_if_one_has_no_memory_for_the_measurement(monkeypatch, capsys):
    speeds = [device_graph.DeviceSpeed(20e9, 80e9), BackendError("the device has no memory")]
    monkeypatch.setattr(device_graph, "measure", Mock(side_effect=speeds))
    monkeypatch.setattr(device_graph, "gpus", lambda: ["full"])
    monkeypatch.setattr("sys.argv", ["device_graph", "speed"])
    device_graph.main()
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cpu"]["bytes_per_second"], answer["gpu"]) == (20e9, None)
    assert answer["devices"]
