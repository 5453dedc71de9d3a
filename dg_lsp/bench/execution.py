"""An attempt's program and its tests, run in a sandbox."""

import dataclasses
from collections.abc import Iterable
from typing import Protocol

from dg_lsp.bench.sandbox.sandbox import Outcome
from dg_lsp.bench.sites import Site
from dg_lsp.errors import UsageError
from dg_lsp.metrics.attempt import Attempt


class Runner(Protocol):
    """Runs a program and says how it ended: a `Sandbox`."""

    def run(self, program: str) -> Outcome:
        """How the program ends."""
        ...


def with_verdict(attempt: Attempt, site: Site, sandbox: Runner) -> Attempt:
    """The attempt with the verdict of the site's tests over its final text; without tests as it is.

    Where nothing was shown there is nothing to run: the tests have not passed.
    """
    program = site.program(attempt.text)
    if program is None:
        return attempt
    return dataclasses.replace(attempt, passes=bool(attempt.shown) and sandbox.run(program).passes)


def check_tests(sites: Iterable[Site]) -> None:
    """Refuses sites of which none has tests.

    Raises:
        UsageError: there is nothing to run.
    """
    if all(site.program("") is None for site in sites):
        raise UsageError("these sites have no tests (test, entry_point): leave --execute out")


def warning(layers: tuple[str, ...]) -> str:
    """What a person should know before it begins: one line."""
    missing = [what for what, by in _HOLDS.items() if not any(layer in layers for layer in by)]
    begin = "--execute runs programs that a model wrote, "
    if not missing:
        return begin + f"in a sandbox ({', '.join(layers)})"
    return begin + f"and this system does not hold them back from {' and '.join(missing)}: better do it in a container"


_HOLDS = {
    "your files": ("landlock", "namespaces"),
    "the network": ("seccomp", "namespaces"),
    "starting processes": ("seccomp",),
}
"""What each of several layers is enough for, whatever the program tries."""
