"""Wall time of one call."""

import time
from collections.abc import Callable


def milliseconds(job: Callable[[], object]) -> float:
    """How long `job` took."""
    start = time.perf_counter()
    job()
    return 1e3 * (time.perf_counter() - start)
