"""Attributes: the names that a buffer knows behind an object and a dot.

A small model invents attributes. Where some of an object are known, a token that neither begins nor completes one of
them gives way to the best token that does. Works on text and token ids, without a model and without a grammar.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dg_lsp.canvas.layout import TokenIds, token_ids

MAX_LINE = 400  # characters before the cursor in which an object may begin
_NAME = r"[^\W\d]\w*"
_REVERSED_ACCESS = re.compile(r"(\w*)\.(\w+(?:\.\w+)*\.?)")  # of a reversed line: matched once, not at each character
_WORD = re.compile(rb"[\w\x80-\xff]*")
_SELF = frozenset(("self", "cls", "this"))
_METHOD, _FIELD = re.compile(r"def[ \t]+(\w+)"), re.compile(r"\n    (\w+): ")
"""What a class defines, as Python writes it; each begins with a text that is found fast."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownNames:
    """The names that the beginning of a name, or none yet, may become."""

    names: tuple[bytes, ...]  # all longer than the beginning
    begun: bytes
    ids: TokenIds  # shape (N,): the first tokens of what is missing of those that are offered
    decode: Callable[[TokenIds], bytes]

    def are_contradicted(self, ids: TokenIds) -> bool:
        """Whether tokens of shape (N,) make another name, or end the begun one."""
        text = self.decode(ids)
        match = _WORD.match(text)
        word = match[0] if match else b""
        if word and len(word) == len(text):
            return not any(name.startswith(self.begun + word) for name in self.names)
        return self.begun + word not in self.names


class Attributes:
    """The attributes that the buffer around one cursor knows."""

    def __init__(
        self, before: str, after: str, encode: Callable[[str], TokenIds], decode: Callable[[TokenIds], bytes]
    ) -> None:
        """Takes the text before and after the cursor. `encode` should cache: each key needs the same names again."""
        self._line = before[-MAX_LINE:].rpartition("\n")[2]
        access = _access(self._line)
        # a name that is being typed is no evidence
        self._texts = before[: len(before) - len(access[1])] if access else before, after
        self._encode, self._decode = encode, decode
        self._names: dict[str, frozenset[str]] = {}
        self._known: dict[tuple[str, str], KnownNames | None] = {}

    def following(self, fill_ids: TokenIds) -> KnownNames | None:
        """The names that may follow a partial fill of shape (N,); None where no attribute of a known object follows."""
        line = (self._line + self._decode(fill_ids).decode("utf-8", "replace")).rpartition("\n")[2]
        access = _access(line)
        if access is None:
            return None
        if access not in self._known:
            self._known[access] = self._known_names(*access)
        return self._known[access]

    def _known_names(self, chain: str, begun: str) -> KnownNames | None:
        names = [name for name in sorted(self._names_of(chain)) if name.startswith(begun)]
        entered = self._entered_methods() if chain in _SELF else set()
        offered = [name for name in names if name not in entered]  # a recursion is for the model to begin
        if not offered or begun in names:  # a complete name may go on as anything
            return None
        ids = sorted({int(self._encode(name[len(begun) :])[0]) for name in offered})
        return KnownNames(tuple(name.encode() for name in names), begun.encode(), token_ids(ids), self._decode)

    def _names_of(self, chain: str) -> frozenset[str]:
        """The attributes that the buffer uses of a chain of names, or else of its last name."""
        if chain not in self._names:
            found = set() if chain.startswith(".") else set(self._used(chain, is_whole=True))
            if chain in _SELF:
                found |= {name for text in self._texts for one in (_METHOD, _FIELD) for name in one.findall(text)}
            self._names[chain] = frozenset(found or self._used(chain.rpartition(".")[2], is_whole=False))
        return self._names[chain]

    def _entered_methods(self) -> set[str]:
        """The methods whose body contains the cursor, by indentation."""
        text, width, found = self._texts[0], len(self._line) - len(self._line.lstrip()), set()
        for match in reversed(list(_METHOD.finditer(text))):
            head = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            indent = len(head) - len(head.lstrip())
            if 0 < indent < width and head.strip() in ("", "async"):
                found.add(match[1])
                width = indent
        return found

    def _used(self, chain: str, *, is_whole: bool) -> Iterator[str]:
        pattern = re.compile(rf"{re.escape(chain)}\.({_NAME})")
        for text in self._texts:
            for match in pattern.finditer(text):
                before = text[match.start() - 1 : match.start()]
                if not (before.isalnum() or before == "_" or (is_whole and before == ".")):
                    yield match[1]


def _access(line: str) -> tuple[str, str] | None:
    """The object and the beginning of its attribute at the end of a line; a dot before the object if it has one."""
    match = _REVERSED_ACCESS.match(line[::-1])
    if match is None or match[2][-1].isdigit():  # a number
        return None
    return match[2][::-1], match[1][::-1]
