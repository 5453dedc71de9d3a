"""Whether JSON values have the types of lsprotocol.

The converter of lsprotocol is lenient: any value becomes a string, and a string an object without fields.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from lsprotocol import types

Check = Callable[[Any], str | None]
"""Returns where a value differs from a type, such as `.range.start`: empty for the value itself, None for nowhere."""


@cache
def check_of(kind: Any) -> Check:
    """The check of a type of lsprotocol, whose names must be resolved, as the converter does.

    Null is a missing field. An empty list is an empty object, as clients in Lua send it, and 3.0 is an integer.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Union:
        return _union([one for one in arguments if attrs.has(one)], [one for one in arguments if not attrs.has(one)])
    if origin is Sequence:
        return _sequence(check_of(arguments[0]))
    if origin is Literal:
        return _simple(lambda value: value in arguments)
    if attrs.has(kind):
        return _object(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        values = [one.value for one in kind]
        return _simple(lambda value: not isinstance(value, bool) and value in values)
    return _simple(_PRIMITIVES.get(kind, lambda _: True))  # Any, and what no client sends


def is_integer(value: Any) -> bool:
    """Whether a value of JSON is a whole number; 3.0 is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


def is_id(value: object) -> bool:
    """Whether a value of JSON may be the id of a request."""
    return isinstance(value, int | str) and not isinstance(value, bool)


_PRIMITIVES: dict[type, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: is_integer,
    float: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    type(None): lambda value: value is None,
    types.LSPObject: lambda value: isinstance(value, Mapping),
}


def _simple(holds: Callable[[Any], bool]) -> Check:
    return lambda value: None if holds(value) else ""


def _union(objects: Sequence[type], others: Sequence[Any]) -> Check:
    def check(value: Any) -> str | None:
        if isinstance(value, Mapping) and objects:
            return check_of(max(objects, key=lambda one: _likeness(one, value)))(value)
        return None if any(check_of(one)(value) is None for one in (*others, *objects)) else ""

    return check


def _likeness(kind: type, value: Mapping[str, Any]) -> tuple[int, int]:
    """How many of the required fields of a type an object has; of two types, the one that requires less is meant."""
    names = [_json_name(one) for one in attrs.fields(kind) if one.default is attrs.NOTHING]
    return sum(value.get(name) is not None for name in names), -len(names)


def _sequence(element: Check) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list):
            return ""
        return next((f"[{at}]{where}" for at, one in enumerate(value) if (where := element(one)) is not None), None)

    return check


def _object(kind: type) -> Check:
    fields: list[tuple[str, Check, bool]] = []  # some types contain themselves

    def check(value: Any) -> str | None:
        if not isinstance(value, Mapping) and value != []:
            return ""
        fields[:] = fields or [_field(one) for one in attrs.fields(kind)]
        for name, element, is_required in fields:
            one = value.get(name) if value else None
            if (one is not None or is_required) and (where := element(one)) is not None:
                return f".{name}{where}"
        return None

    return check


def _field(field: "attrs.Attribute[Any]") -> tuple[str, Check, bool]:
    """The name of a field in JSON, its check, and whether it is required."""
    declared: Any = field.type
    return _json_name(field), check_of(declared), field.default is attrs.NOTHING


def _json_name(field: "attrs.Attribute[Any]") -> str:
    first, *others = field.name.removesuffix("_").split("_")
    return "".join([first, *map(str.title, others)])
