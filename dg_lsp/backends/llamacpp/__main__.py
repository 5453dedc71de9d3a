"""Prints the devices of llama.cpp and their speeds as JSON: a driver may end the process that loads it."""

import json
import sys
from dataclasses import asdict

from dg_lsp.backends.llamacpp.device_feedback import GPU_KINDS
from dg_lsp.backends.llamacpp.device_speed import measure
from dg_lsp.backends.llamacpp.library import devices
from dg_lsp.errors import BackendError


def main() -> None:
    """With the argument `speed` it also measures."""
    found: dict[str, object] = {"devices": [asdict(device) for device in devices()]}
    if "speed" in sys.argv:
        for name, kinds in {"cpu": ("cpu",), "gpu": GPU_KINDS}.items():
            speed = measure(kinds)
            found[name] = asdict(speed) if speed else None
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    try:
        main()
    except BackendError as error:
        sys.exit(str(error))
