"""Names that nothing binds where they are read."""

import pytest

from dg_lsp.postprocess.validate import unbound_names

BOUND = {
    "builtin and module": "import os as system\nprint(len(system.sep), __name__, __file__)",
    "module level, below": "def f():\n    return late\nlate = 1",
    "module level, in a branch": "try:\n    import a.b\nexcept ImportError as e:\n    a = e",
    "enclosing function": "def f(a, *b, c=1, **d):\n    def g():\n        return a, b, c, d, f, g\n    return g",
    "own function, from below": "def f():\n    print(x)\n    x = 1",
    "comprehension": "def f(rows):\n    return {k: [c for c in v] for k, v in rows if k}",
    "walrus, with, loop, unpacking": "def f(a):\n with a as (b, *c):\n  for d in b: (e := d)\n return b, c, d, e",
    "match": "def f(a):\n    match a:\n        case {'k': v, **rest} | [v, *rest]:\n            return v, rest",
    "global of another function": "def f():\n    global made\n    made = 1\ndef g():\n    return made",
    "nonlocal": "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n    return g",
    "class": "class C:\n  a = 1\n  b = a\n  __qualname__\n  def f(self): return __class__, super().f()",
    "lambda and decorator": "def d(f): return f\n@d\ndef g(): return lambda x, y=1: x + y",
    "attribute and keyword": "import os\nos.nowhere.at_all(nothing=1, print=2)",
    "annotated only": "x: int\ndef f():\n    return x",
    "star import": "from os import *\nprint(getcwd())",
    "exec": "exec('a = 1')\nprint(a)",
    "globals": "globals().update(a=1)\nprint(a)",
    "no Python": "print a",
}
UNBOUND = {
    "anywhere": "def f():\n    return nothing.at_all",
    "local of another function": "def g():\n    nothing = 1\ndef f():\n    return nothing",
    "parameter outside": "def g(nothing): ...\nnothing()",
    "comprehension outside": "[nothing for nothing in ()]\nnothing",
    "class body, from a method": "class C:\n    nothing = 1\n    def f(self):\n        return nothing",
    "global that nothing assigns": "def f():\n    global nothing\n    return nothing",
}


@pytest.mark.parametrize("text", BOUND.values(), ids=BOUND)
def test_a_name_that_something_may_bind_is_known(text):
    assert unbound_names(text) == frozenset()


@pytest.mark.parametrize("text", UNBOUND.values(), ids=UNBOUND)
def test_a_name_that_nothing_binds_in_sight_is_unknown(text):
    assert unbound_names(text) == {"nothing"}
