import pytest

from dg_lsp.postprocess.validate import Candidate, Reason

from .conftest import judged


def case(marked, fill, reason=None):
    return pytest.param(marked, fill, reason, id=f"{marked!r} {fill!r}")


@pytest.mark.parametrize(
    ("marked", "fill", "reason"),
    [
        case("def f(x):\n    |\n", "if x:", Reason.HOLLOW),
        case("def f(x):\n    |\n", '""""""', Reason.HOLLOW),
        case("def f(x):\n    x = x + |\n    x = |\n".replace("|", "1", 1), "x", Reason.NO_EFFECT),
        case("class C:\n    def f(self):\n        self.a = |\n", "self.a  # why", Reason.NO_EFFECT),
        case("x = f(|\n", ")", Reason.CLOSERS),
        case("# The length of |\n", "the number of items in the number of items", Reason.REPEATS_ITSELF),
        case("# a |\n", "list list list", Reason.REPEATS_ITSELF),
        case("def f(x):\n    |\n", "total += value\n    total += value", Reason.REPEATS_ITSELF),
        case("def f(x):\n    |\n", "\n    ".join(["first = 1", "other = 2"] * 2), Reason.REPEATS_ITSELF),
        case("|\n", "# Copyright (c) 2001 Somebody", Reason.LICENCE),
        # fills that only look alike
        case("def f(x):\n    |\n        y()\n", "if x:"),
        case("def f(x):\n    y()\n    |\n", "if x:"),
        case("def f(x):\n    |\n", '"""Twice."""'),
        case("x = f(\n    x=|\n)\n", "x"),
        case("x = |\n", "x + 1"),
        case('def f():\n    """Words\n    |\n', '"""'),
        case("x = f(a|\n", ", b)"),
        case("x = |\n", "a is not None and b is not None"),
        case("def f(x):\n    |\n", "self.up()\n    x()\n    self.up()"),
        case("x = [\n    |\n]\n", "0, 0,\n    0, 0,"),
        case("# Copyright (c) 2001 Somebody\n|\n", "# All rights reserved."),
    ],
)
def test_a_fill_with_a_fault_is_hidden_unless_it_is_requested(marked, fill, reason):
    result = judged(marked, fill)
    assert isinstance(result, Candidate), result
    assert result.fault is reason
