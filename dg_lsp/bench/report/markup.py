"""Markup that cannot be broken by what it shows: text is escaped unless it was made here.

Model output is hostile text. Control characters are shown as pictures and lone surrogates replaced: a page must hold
them without hiding anything and be valid UTF-8.
"""

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"br", "input", "meta"})
"""Elements that have no end tag; those of SVG have one."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""What is not seen, or changes the order of what is."""


class Html(str):
    """Markup."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Text as markup that shows it."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_CONTROL.sub(_picture, text.replace("\r\n", "\n"))))


def element(name: str, *children: str, **attributes: str | float | bool | None) -> Html:
    """One element. An attribute's trailing `_` is dropped and others become `-`; None and False leave it out."""
    pairs = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    opened = f"<{name}{pairs}>"
    return Html(opened if name in _VOID else f"{opened}{join(children)}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Html:
    """One after the other, each escaped unless it is markup."""
    return Html(escape(between).join(escape(part) for part in parts))


def number(value: float) -> str:
    """Two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attribute(key: str, value: str | float | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    return f' {name}="{escape(value if isinstance(value, str) else number(value))}"'


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"
