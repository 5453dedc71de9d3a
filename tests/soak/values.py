"""Values of the types of LSP, values that are damaged, and whether a value has a type.

`fits` is the fuzzer's own reading of the types of lsprotocol, without its converter and without dg-lsp.
"""

import enum
import typing
from collections import abc

import attrs
from lsprotocol import types

from dg_lsp.settings import KEYS

MOST = 2**31 - 1
BOUNDS = (0, 1, 2, 7, 80, 255, MOST, MOST + 1, 2**32 - 1, 2**53, 2**63, 10**25, -1, -2, -(2**31), -(2**31) - 1)
PIECES = (
    "a", "total = 0", " ", "    ", "\t", "\n", "\r", "\r\n", "\n\n", "\r\r\n", "\n\r", "é", "ß", "Ω", "漢字", "😋",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "🇪🇺", "\u0301", "\ufeff", "\u2028", "\x0c", "\x0b", "\x1c", "\x85",
    "\ud83d", "\ude00", "\uffff", "\U0010ffff", "\x00", "def f(x):", "return ", "(", ")", "]", "}", '"', "'", "# ",
    "\\", "<|middle|>", "import os\n", "x" * 300,
)  # fmt: skip
URIS = (
    "", "a", "file:", "file://", "file:///", "file:///project/a b.py", "file:///project/%61%2Epy", "file:///%00",
    "file:///project/%", "file:///project/%ff%fe.py", "file://[", "http://[::1/a.py", "http://]x[/", "a://b:c:d/e",
    "untitled:Untitled-1", "file:///C:/a.py", "file:///c%3A/a.py", "file://server/share/a.py", "file://\x00/",
    "file:///../../etc/passwd", "file:///project/.env", "file:///project/\u202e.py", "file:///project/\ud800.py",
    "file:///project/😋.py", "git:/a.py?{}", "file:///" + "x" * 5000, "file:///" + "a/" * 3000, "file:///a\nb",
    "vscode-notebook-cell:/a.ipynb#W0",
)  # fmt: skip
LANGUAGES = ("python", "python", "python", "c", "rust", "markdown", "yaml", "", "nothing", "PYTHON", "\x00")
CHANGE_KINDS = types.TextDocumentContentChangePartial, types.TextDocumentContentChangeWholeDocument
DEEP = 500
SETTINGS = tuple(
    key
    for key in KEYS
    # others load models, send text or write files; with another deadline answers depend on the machine, and with
    # another pause before a completion they may take days
    if key.startswith(("completion.", "context.", "privacy.exclude", "rewrite."))
    and not key.endswith(("deadline_ms", "debounce_ms"))
)
_BROKEN = object()


def text(rng, most=12):
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, most)))


def anything(rng, depth=3):
    """Any value of JSON."""
    kind = rng.randrange(12 if depth else 8)
    if kind < 8:
        choices = (None, True, False, rng.choice(BOUNDS), rng.choice((0.5, -0.0, 1e308, 3.0)), text(rng, 3), [], {})
        return choices[kind]
    if kind < 10:
        return [anything(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    keys = ("uri", "line", "character", "range", "start", "text", "id", "method", "type_name", "_", "1", "", "class")
    return {rng.choice(keys): anything(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def huge(rng):
    """A value that is long, large or nested."""
    nested = rng.choice(([], {}))
    for _ in range(DEEP):
        nested = [nested] if isinstance(nested, list) else {"a": nested}
    return rng.choice(
        (nested, "x" * 100_000, "😋" * 20_000, [0] * 20_000, dict.fromkeys(map(str, range(5000))), 10**400)
    )


def settings(rng):
    """A tree of settings; some of them have wrong names or values."""
    tree = {}
    for _ in range(rng.randint(0, 4)):
        group, key = rng.choice(SETTINGS).split(".")
        if rng.random() < 0.1:
            key += "x"
        value = rng.choice((True, False, 0, 1, 0.5, "auto", "", [], ["*.x", "!"], ["["], None, anything(rng)))
        tree[group] = {**tree.get(group, {}), key: value}
    return tree


def json_name(field):
    """The name of an attribute as LSP spells it."""
    first, *words = field.name.rstrip("_").split("_")
    return first + "".join(word.title() for word in words)


def make(kind, rng, special, depth=0):
    """A value of a type; `special` has functions that make those of some types."""
    if kind in special:
        return special[kind]()
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        return make(rng.choice([inner for inner in arguments if inner is not type(None)]), rng, special, depth)
    if origin is abc.Sequence:
        return [make(arguments[0], rng, special, depth + 1) for _ in range(rng.randint(0, 2))]
    if origin is typing.Literal:
        return arguments[0]
    if isinstance(kind, type) and attrs.has(kind):
        wanted = [
            field for field in attrs.fields(kind) if field.default is attrs.NOTHING or rng.random() < 0.4 / (depth + 1)
        ]
        return {json_name(field): make(field.type, rng, special, depth + 1) for field in wanted}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return rng.choice(list(kind)).value
    simple = {str: lambda: text(rng, 3), bool: lambda: rng.random() < 0.5, int: lambda: rng.choice((0, 1, 5, MOST))}
    simple |= {float: lambda: 0.5, types.LSPObject: dict, type(None): lambda: None}
    return simple.get(kind, lambda: anything(rng))()


def damaged(tree, rng):
    """A copy of the tree with something missing, null, of another type, huge or too much, at one place."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(list(tree))
        rest = {name: value for name, value in tree.items() if name != key}
        new = damaged(tree[key], rng)
        return rest if new is _BROKEN else {**rest, key: new}
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        at = rng.randrange(len(tree))
        new = damaged(tree[at], rng)
        return tree[:at] + ([] if new is _BROKEN else [new]) + tree[at + 1 :]
    how = rng.random()
    if how < 0.2:
        return _BROKEN
    if how < 0.3:
        return None
    if how < 0.35:
        return huge(rng)
    if how < 0.45:
        return {**tree, text(rng, 1): anything(rng)} if isinstance(tree, dict) else [tree]
    if how < 0.55 and isinstance(tree, int | float) and abs(tree) < 1e300:
        return rng.choice((*BOUNDS, str(tree), tree + 0.5, float(tree), True))
    return anything(rng)


def damaged_message(message, rng):
    """A message whose parameters are damaged, or missing."""
    params = damaged(message.get("params"), rng)
    rest = {key: value for key, value in message.items() if key != "params"}
    return rest if params is _BROKEN else {**rest, "params": params}


def fits(value, kind, field=None):
    """Whether a value of JSON has a type; the attribute limits a number."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if arguments == CHANGE_KINDS:
        is_part = isinstance(value, dict) and value.get("range") is not None
        return fits(value, CHANGE_KINDS[0] if is_part else CHANGE_KINDS[1])
    if origin is typing.Union:
        return any(fits(value, inner, field) for inner in arguments)
    if origin is abc.Sequence:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is typing.Literal:
        return value in arguments
    if kind is types.Position:
        return _is_position(value)
    if isinstance(kind, type) and attrs.has(kind):
        return (isinstance(value, dict) or value == []) and all(
            _has(value or {}, inner) for inner in attrs.fields(kind)
        )
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return any(value == member.value for member in kind) and not isinstance(value, bool)
    if kind is int:
        is_unsigned = "uinteger" in repr(field and field.validator)
        is_limited = field is not None and field.validator is not None
        return _is_whole(value) and (not is_limited or (0 if is_unsigned else -MOST - 1) <= value <= MOST)
    python = {str: str, bool: bool, float: int | float, types.LSPObject: dict, type(None): type(None)}.get(kind, object)
    return isinstance(value, python) and (kind is not float or not isinstance(value, bool))


def _has(value, field):
    """A field may be missing or null if it is optional or may be null."""
    item = value.get(json_name(field))
    return (item is None and field.default is not attrs.NOTHING) or fits(item, field.type, field)


def _is_whole(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1


def _is_position(value):
    """A line and a column may have any whole number: they are limited to the text."""
    return isinstance(value, dict) and all(_is_whole(value.get(name)) for name in ("line", "character"))
