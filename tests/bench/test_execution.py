import dataclasses

import pytest

from dg_lsp.bench.execution import check_tests, warning, with_verdict
from dg_lsp.bench.sandbox.sandbox import LAYERS, Ending, Limits, Outcome, Sandbox
from dg_lsp.bench.sites import Site
from dg_lsp.errors import UsageError
from dg_lsp.metrics.attempt import Attempt, Shown

SITE = Site("s", "line-end", "def f(a):\n    return ", "\n", "a + 1", "def check(f): assert f(1) == 2", "f")


def attempt(*texts):
    shown = tuple(Shown(5.0, text) for text in texts)
    return Attempt("s", "line-end", "auto", "diffusion", SITE.want, shown, False, None, 5.0, 1, 1, -0.1, None, 1.0, 2.0)


class Recorder:
    """Passes everything."""

    def __init__(self):
        self.programs = []

    def run(self, program):
        self.programs.append(program)
        return Outcome(Ending.PASSED, "", (), 0.0)


def test_the_final_text_is_what_is_run():
    runner = Recorder()
    assert with_verdict(attempt("a", "1 + a"), SITE, runner).passes is True
    assert runner.programs == ["def f(a):\n    return 1 + a\n\ndef check(f): assert f(1) == 2\ncheck(f)\n"]


def test_nothing_shown_has_not_passed_and_is_not_run():
    runner = Recorder()
    assert with_verdict(attempt(), SITE, runner).passes is False
    assert runner.programs == []


def test_without_tests_nothing_is_said():
    runner = Recorder()
    one = attempt("a")
    assert with_verdict(one, dataclasses.replace(SITE, test=None), runner) is one
    assert runner.programs == []


def test_a_program_that_passes_makes_another_fill_useful():
    sandbox = Sandbox(Limits(cpu_seconds=2, wall_seconds=60))
    right, wrong = with_verdict(attempt("1 + a"), SITE, sandbox), with_verdict(attempt("a - 1"), SITE, sandbox)
    assert (right.passes, right.is_useful) == (True, True)
    assert (wrong.passes, wrong.is_useful) == (False, False)


def test_sites_without_tests_are_refused():
    check_tests([SITE, dataclasses.replace(SITE, test=None)])
    with pytest.raises(UsageError, match="--execute"):
        check_tests([dataclasses.replace(SITE, test=None)])


@pytest.mark.parametrize(
    ("layers", "missing"),
    [
        pytest.param(LAYERS, [], id="all of them"),
        pytest.param(("limits", "landlock", "seccomp"), [], id="what is enough"),
        pytest.param(("limits", "seccomp", "audit"), ["your files"], id="no Landlock"),
        pytest.param(
            ("limits", "audit"), ["your files", "the network", "starting processes"], id="no help of the kernel"
        ),
    ],
)
def test_the_warning_names_what_is_not_held_back(layers, missing):
    text = warning(layers)
    assert text.startswith("--execute runs programs that a model wrote")
    assert "\n" not in text
    assert ("container" in text) is bool(missing)
    assert [what for what in ("your files", "the network", "starting processes") if what in text] == missing
