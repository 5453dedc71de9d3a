"""Names that a buffer knows behind an object and a dot, in tokens of single bytes."""

import pytest

from dg_lsp.backends.scripted import ByteTokenizer
from dg_lsp.engine.corrections import Attributes

BYTES = ByteTokenizer()
CLASS = """class Basket(Goods):
    colour: str

    def __init__(self):
        self.apples = self.first = 0

    async def sell(self, when):
        when.day, item.self.sold, selfish.kept
"""


def names(before, after="\n", fill=""):
    """Names that may follow at the end of `before` and the fill; empty where anything may follow."""
    known = Attributes(before, after, BYTES.encode, BYTES.decode).following(BYTES.encode(fill))
    return sorted(name.decode() for name in known.names) if known else []


def contradicts(fill, token):
    known = Attributes(f"{CLASS}        x = ", "\n", BYTES.encode, BYTES.decode).following(BYTES.encode(fill))
    return known is not None and known.are_contradicted(BYTES.encode(token))


def test_object_has_the_attributes_that_the_buffer_uses_and_its_class_defines():
    of_self = ["__init__", "apples", "colour", "first", "sell"]
    assert names(f"{CLASS}        self.") == of_self
    assert names(f"{CLASS}        x = ", fill="self.") == of_self
    assert names(f"{CLASS}        when.") == ["day"]
    assert names("x = ", after="\nbox.width = box.height.mm\n", fill="box.") == ["height", "width"]


def test_name_goes_on_with_what_the_buffer_knows():
    assert names(f"{CLASS}        self.a") == ["apples"]
    assert names(f"{CLASS}        self.", fill="f") == ["first"]


def test_chain_of_names_is_an_object_of_its_own_or_else_its_last_name():
    text = "self.box.width\nitem.box.depth\n"
    assert names(f"{text}self.box.") == ["width"]
    assert names(f"{text}other.box.") == names(f"{text}f(x).box.") == ["depth", "width"]


def test_a_method_is_not_offered_in_its_own_body_but_may_be_called_there():
    helper = "\n    def sort(self):\n        self.sell()\n"
    body = f"def size(x): pass\n\n{CLASS}{helper}\n    def size(self):\n        def key(x):\n            return "
    known = Attributes(body, "\n", BYTES.encode, BYTES.decode).following(BYTES.encode("self.s"))
    assert BYTES.decode(known.ids) == b"eo"  # sell, sort
    assert not known.are_contradicted(BYTES.encode("ize"))
    after = "\n\n    def other(self):\n        pass\n"
    known = Attributes(f"{CLASS}        self.sel", after, BYTES.encode, BYTES.decode).following(BYTES.encode(""))
    assert known is None
    known = Attributes(f"{CLASS}        self.", after, BYTES.encode, BYTES.decode).following(BYTES.encode("o"))
    assert BYTES.decode(known.ids) == b"t"


@pytest.mark.parametrize("before", ["other.", "self", "", "1.", "x = f().", "self.box.", "self.unknown", "self.sell"])
def test_anything_may_follow_an_unknown_object_and_a_complete_name(before):
    assert names(f"{CLASS}        {before}") == []


def test_name_that_is_being_typed_is_no_evidence():
    assert names("point.x\npoint.horizontal") == []
    assert names("point.x\npoint.") == ["x"]


@pytest.mark.parametrize(
    ("fill", "token", "expected"),
    [
        ("self.", "a", False),
        ("self.", "apples", False),
        ("self.", "apples = 1", False),
        ("self.", "app = 1", True),
        ("self.", "b", True),
        ("self.", "\n", True),
        ("self.app", "les", False),
        ("self.app", "(", True),
        ("self.apples", "_x", False),
        ("other.", "b", False),
    ],
)
def test_token_contradicts_when_it_makes_another_name(fill, token, expected):
    assert contradicts(fill, token) is expected


def test_tokens_of_the_set_begin_what_is_missing_of_the_names():
    known = Attributes("a.width\na.height\na.wide\na.w", "\n", BYTES.encode, BYTES.decode).following(BYTES.encode("i"))
    assert BYTES.decode(known.ids) == b"d"
    known = Attributes("a.width\na.height\na.", "\n", BYTES.encode, BYTES.decode).following(BYTES.encode(""))
    assert BYTES.decode(known.ids) == b"hw"
