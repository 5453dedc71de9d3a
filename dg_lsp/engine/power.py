"""Whether the machine runs on its battery. Asked rarely: the answer changes rarely, and reading it takes a while."""

import time

import psutil

_PAUSE = 30.0
"""Seconds for which an answer holds."""


class Power:
    """Remembers the last answer."""

    def __init__(self) -> None:
        self._asked = -_PAUSE
        self._is_battery = False

    def on_battery(self) -> bool:
        """True where there is a battery and it is what the machine lives on; False where nobody knows."""
        now = time.monotonic()
        if now - self._asked >= _PAUSE:
            self._asked = now
            self._is_battery = _reads_battery()
        return self._is_battery


def _reads_battery() -> bool:
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError):  # no such sensor on this system
        return False
    return battery is not None and battery.power_plugged is False
