"""A request's body, read field by field. Unknown fields are nobody's business; a wrong type names its field."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.requests import Request

from dg_lsp.http.refusal import Refusal

MOST_OBJECTS = 4096
"""In an array; editors send a few, and each is looked at while everybody waits."""
BODY_SECONDS = 10.0
"""For a body to arrive; an editor on the same machine sends it at once."""


class Fields:
    """One JSON object. null counts as absent, as clients mean it."""

    def __init__(self, tree: Mapping[str, Any], path: str = "") -> None:
        self._tree = tree
        self._path = path

    def __contains__(self, name: str) -> bool:
        return self._tree.get(name) is not None

    def is_array(self, name: str) -> bool:
        """Whether it is one; absent is not."""
        return isinstance(self._tree.get(name), list)

    def text(self, name: str, default: str = "") -> str:
        """A string.

        Raises:
            Refusal: it is something else.
        """
        value = self._of(name, str, "a string")
        return default if value is None else str(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """true or false.

        Raises:
            Refusal: it is something else.
        """
        value = self._of(name, bool, "true or false")
        return default if value is None else bool(value)

    def number(self, name: str, default: float) -> float:
        """A finite number.

        Raises:
            Refusal: it is something else.
        """
        value = self._tree.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(name, f"expected a number, got {_kind(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.refuse(name, "expected a number that is not that large")
        return number

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        """A whole number within bounds.

        Raises:
            Refusal: it is something else.
        """
        number = self.number(name, default)
        if number != math.floor(number):
            self.refuse(name, f"expected a whole number, got {number:g}")
        value = self._tree.get(name)
        whole = value if isinstance(value, int) else int(number)  # a float of it may be another
        if not least <= whole <= most:
            # llama.cpp's words: its clients show them to the user
            self.refuse(name, f"Value must be between {least} <= value <= {most}, but got {whole}")
        return whole

    def texts(self, name: str) -> tuple[str, ...]:
        """An array of strings; one string alone is an array of one.

        Raises:
            Refusal: it is something else.
        """
        value = self._tree.get(name)
        if value is None:
            return ()
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            self.refuse(name, f"expected an array of strings, got {_kind(value)}")
        return tuple(found)

    def object(self, name: str) -> "Fields | None":
        """An object within this one.

        Raises:
            Refusal: it is something else.
        """
        value = self._of(name, dict, "an object")
        return None if value is None else Fields(value, f"{self._path}{name}.")

    def objects(self, name: str) -> "tuple[Fields, ...]":
        """An array of objects.

        Raises:
            Refusal: it is something else.
        """
        value = self._of(name, list, "an array of objects") or []
        if len(value) > MOST_OBJECTS:
            self.refuse(name, f"expected at most {MOST_OBJECTS} objects, got {len(value)}; send the newest ones")
        if not all(isinstance(one, dict) for one in value):
            self.refuse(name, "expected an array of objects")
        return tuple(Fields(one, f"{self._path}{name}[{number}].") for number, one in enumerate(value))

    def refuse(self, name: str, reason: str) -> NoReturn:
        """Says what is wrong with a field.

        Raises:
            Refusal: always.
        """
        raise Refusal(400, f"Field '{self._path}{name}': {reason}", field=f"{self._path}{name}")

    def _of(self, name: str, kind: type, called: str) -> Any:
        value = self._tree.get(name)
        if value is not None and not isinstance(value, kind):
            self.refuse(name, f"expected {called}, got {_kind(value)}")
        return value


async def fields_of(request: Request, max_bytes: int) -> Fields:
    """The body's object.

    Raises:
        Refusal: compressed, too long, too slow, no JSON, or no object.
        ClientDisconnect: the client left before it had said everything.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refusal(415, "the request's body is compressed; send it as it is")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _body(request, max_bytes)
    except TimeoutError:
        raise Refusal(408, f"the request's body did not arrive within {BODY_SECONDS:.0f} s") from None
    try:
        tree = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request's body is no JSON: {_reason(error)}") from None
    if not isinstance(tree, dict):
        raise Refusal(400, f"the request's body must be a JSON object, not {_kind(tree)}")
    return Fields(tree)


async def _body(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    too_long = Refusal(413, f"the request's body is longer than {max_bytes} bytes; send less context")
    if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
        raise too_long
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_long
    return bytes(body)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _reason(error: Exception) -> str:
    """Where and why; never what stood there."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "nested too deep, or a number out of bounds"


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else kinds.get(type(value), "an object")
