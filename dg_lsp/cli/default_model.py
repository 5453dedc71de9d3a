"""The bundled model that `auto` takes: dg-base where it completes a line fast enough, else dg-mini.

The time of a line follows from the costs that every start measures. It is remembered for the file and this machine, so
that only the first start may load dg-base in vain; a machine that was too slow is tried again after a week.
"""

import contextlib
import json
import os
import time

from dg_lsp.models.registry import BASE, MINI, locate
from dg_lsp.models.selection import Selection
from dg_lsp.settings import ModelSettings
from dg_lsp.system import data_folder, processor_name, system_free, write_private

VARIABLE = "DG_LSP_AUTO_MODEL"
"""Environment variable with the model that `auto` takes instead."""
MAX_LINE_MS = 300.0
MIN_FREE_BYTES = 10**9
_RECORD = "line-times.json"
_SLOW_SECONDS = 7 * 86400.0
_MAX_RECORDED = 20


def default_model(settings: ModelSettings) -> Selection:
    """The model that `auto` takes with these settings, and why."""
    from dg_lsp.errors import ModelNotFoundError

    if given := os.environ.get(VARIABLE):
        return Selection(given, f"{VARIABLE} names it")
    try:
        ms, at = _read().get(_key(settings), (0.0, 0.0))
    except ModelNotFoundError as error:
        return Selection(MINI, str(error))
    if (free := system_free()) < MIN_FREE_BYTES:
        return Selection(MINI, f"{BASE} needs 1 GB of free memory, {free / 1e9:.1f} GB are free")
    if not ms or (ms > MAX_LINE_MS and time.time() - at > _SLOW_SECONDS):
        return Selection(BASE, "how long a line takes is measured at the next start")
    return _by_time(ms)


def judged(settings: ModelSettings, line_ms: float) -> Selection:
    """The same once a start of dg-base has measured its line; a faster one of an earlier start counts instead: the
    machine was less busy."""
    if VARIABLE in os.environ:
        return default_model(settings)
    record, key = _read(), _key(settings)
    best = min(line_ms, record.pop(key, (line_ms, 0.0))[0])
    _write(dict([*record.items(), (key, (best, time.time()))][-_MAX_RECORDED:]))
    return _by_time(best)


def _by_time(ms: float) -> Selection:
    limit = f"at most {MAX_LINE_MS:.0f} ms"
    if ms > MAX_LINE_MS:
        return Selection(MINI, f"a line by {BASE} takes {ms:.0f} ms here, and {limit} are wanted")
    return Selection(BASE, f"a line takes {ms:.0f} ms here, {limit} are wanted")


def forget() -> None:
    """The next start measures again."""
    _write({})


def _key(settings: ModelSettings) -> str:
    """What the time depends on: the file, the processor, its cores and the settings. Raises ModelNotFoundError."""
    stat = locate(BASE).stat()
    runtime = (settings.threads, settings.gpu_layers, settings.device)
    return " ".join(map(str, (processor_name(), os.cpu_count(), *runtime, stat.st_size, stat.st_mtime_ns)))


def _read() -> dict[str, tuple[float, float]]:
    """Milliseconds and the time of the record, by key; without a readable file all is measured again."""
    try:
        tree = json.loads((data_folder() / _RECORD).read_text(encoding="utf-8"))
        return {str(key): (float(ms), float(at)) for key, (ms, at) in tree.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _write(record: dict[str, tuple[float, float]]) -> None:
    with contextlib.suppress(OSError):
        data_folder().mkdir(parents=True, exist_ok=True)
        write_private(data_folder() / _RECORD, record)
