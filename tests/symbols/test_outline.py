import pytest

from dg_lsp.server.workspace_index import MAX_MEMBERS, outline_of


def definitions(text):
    return outline_of(text).definitions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("def f(a, *, b=1) -> int:\n    return a\n", {"f": "def f(a, *, b=1) -> int: ..."}, id="function"),
        pytest.param("async def f(): pass\n", {"f": "async def f(): ..."}, id="async"),
        pytest.param('def f():\n    """Says.\n\n    More."""\n', {"f": 'def f():\n    """Says."""'}, id="docstring"),
        pytest.param("@dec(1)\ndef f(): pass\n", {"f": "def f(): ..."}, id="decorated"),
        pytest.param("def f(\n    a,  # why\n    b: int,\n): pass\n", {"f": "def f(a, b: int): ..."}, id="many lines"),
        pytest.param("X: int = 3\nY = [\n  1,\n]\n", {"X": "X: int = 3", "Y": "Y = [ 1, ]"}, id="constants"),
        pytest.param("x.y = 1\na, b = c\nprint(1)\n", {}, id="what defines no name"),
        pytest.param("class A(B): pass\n", {"A": "class A(B): ..."}, id="empty class"),
        pytest.param("def f(): pass\ndef f(a): pass\n", {"f": "def f(a): ..."}, id="the last one of a name"),
        pytest.param("", {}, id="empty"),
        pytest.param("name = '\ud7ff'\n", {"name": "name = '\ud7ff'"}, id="not ASCII"),
    ],
)
def test_what_a_file_defines(text, expected):
    assert definitions(text) == expected


def test_a_class_shows_its_public_members():
    text = (
        'class A:\n    """Holds."""\n    x: int = 1\n    def __init__(self, x): self.x = x\n'
        "    @property\n    def y(self): return 1\n    def _z(self): pass\n    print(1)\n"
    )
    shown = 'class A:\n    """Holds."""\n    x: int = 1\n    def __init__(self, x): ...\n    def y(self): ...'
    assert definitions(text) == {"A": shown}


def test_a_giant_class_is_cut():
    text = "class A:\n" + "".join(f"    def m{i}(self): pass\n" for i in range(100))
    assert definitions(text)["A"].count("\n") == MAX_MEMBERS


def test_a_half_written_file_shows_what_is_whole():
    assert "f" in definitions("def f(a): pass\n\n\nclass B(\n")
