"""Lines of .gitignore files, matched as git matches them, in time linear in the length of a path.

As in git, a pattern is compared with the bytes of a path, the last pattern that matches decides, and nothing inside an
excluded folder can be included again.
"""

import functools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

IGNORES_CASE = sys.platform in ("win32", "darwin")
"""Whether two spellings of a path that differ in case usually name the same file."""
MAX_FOLDERS = 256
"""A path of more folders is excluded where a pattern that starts with `!` may include it: the time is quadratic."""
_SLASH = r"/(?!\Z)"  # between two names, not the one that ends a folder's path
_SPECIAL = re.compile(r"[*?\[\\]")
_CLASS = re.compile(r"\[:(\w*):\]")
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x01-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": " \\t\\n\\r",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
"""Characters of `[[:alnum:]]` and so on: ASCII only."""


class Pattern(NamedTuple):
    """One line. A path is matched with a slash after the name of each folder."""

    regex: re.Pattern[str]  # matches the path or a folder around it; its group is what follows the slash of a folder
    is_negative: bool  # `!`


class Rule(NamedTuple):
    """A pattern, and where the part of a path starts that it is compared with."""

    start: int
    pattern: Pattern


def folded(text: str) -> str:
    """The form of a text in which names are compared: without case on Windows and macOS."""
    return text.casefold() if IGNORES_CASE else text


def path_bytes(path: str) -> str:
    """A folded path as patterns see it: one character for each byte."""
    try:
        return folded(path).encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:  # a lone surrogate of JSON
        return folded(path).encode("utf-8", "surrogatepass").decode("latin-1")


@functools.lru_cache(maxsize=64)
def compiled(lines: tuple[str, ...]) -> tuple[Pattern, ...]:
    """The patterns of these lines without comments and without lines that match nothing; the last one comes first."""
    return tuple(pattern for line in reversed(lines) if (pattern := _compiled(line)) is not None)


def is_pattern(line: str) -> bool:
    """Whether a line is a comment or can match a path."""
    return line.startswith("#") or _compiled(line) is not None


def anywhere(line: str) -> str:
    """The line of a pattern that is relative to every folder, in place of one that is relative to a certain folder."""
    sign = line[: line.startswith("!")]
    text = line.removeprefix("!")
    return line if line.startswith("#") else f"{sign}**/{text.removeprefix('/')}"


def below(folder: str, line: str) -> str:
    """The pattern of a line that is relative to a folder, relative to the root of the file system.

    A pattern without a slash, which matches everywhere, stays.
    """
    sign = line[: line.startswith("!")]
    text = line.removeprefix("!")
    if line.startswith("#") or "/" not in text.rstrip(" ").removesuffix("/"):
        return line
    escaped = _SPECIAL.sub(r"\\\g<0>", folder.strip("/")).replace("\n", "?")
    return sign + f"/{escaped}".rstrip("/") + "/" + text.removeprefix("/")


def is_excluded(path: str, rules: Iterable[Rule]) -> bool:
    """Whether the rules, the most important one first, exclude a path of `path_bytes`. A folder's ends with a slash."""
    possible = [rule for rule in rules if rule.pattern.is_negative or rule.pattern.regex.fullmatch(path, rule.start)]
    signs = {rule.pattern.is_negative for rule in possible}
    if False not in signs or True not in signs:
        return False in signs
    ends = [name.end() for name in re.finditer(r"[^/](?:/|\Z)", path)]
    return len(ends) > MAX_FOLDERS or any(_decides(path, end, possible) for end in ends)


def _decides(path: str, end: int, rules: Sequence[Rule]) -> bool:
    """Whether the path up to `end` is excluded by the first rule that matches it, and not only a folder around it."""
    for start, pattern in rules:
        if start < end and (match := pattern.regex.fullmatch(path, start, end)) is not None and not match[1]:
            return not pattern.is_negative
    return False


def _compiled(line: str) -> Pattern | None:
    text = path_bytes(line).removesuffix("\r").partition("\0")[0]
    if text.startswith("#"):
        return None
    if (stripped := text.rstrip(" ")) != text:  # an escaped space stays
        text = stripped + " " * ((len(stripped) - len(stripped.rstrip("\\"))) % 2)
    is_negative = text.startswith("!")
    text = text.removeprefix("!")
    is_folder = text.endswith("/")
    text = text.removesuffix("/")
    is_anchored = "/" in text
    text = text.removeprefix("/")
    special = _SPECIAL.search(text)
    try:
        runs = _runs(text, special.start() if special is not None and is_anchored else -1)
    except LookupError:  # a backslash at the end, a bracket that is not closed, an unknown class
        return None
    if not text:
        return None
    flags = re.DOTALL | re.IGNORECASE | re.ASCII if IGNORES_CASE else re.DOTALL
    body = _joined(runs if is_anchored else [[""], *runs])
    return Pattern(re.compile(body + ("/(.*)" if is_folder else "(?:/(.*))?"), flags), is_negative)


def _runs(text: str, first_special: int) -> list[list[str]]:
    """Regular expressions of what lies between `**/`, and in each of them of what lies between asterisks."""
    runs = [[""]]
    at = 0
    while at < len(text):
        char = text[at]
        start = at
        at += 1
        if char == "*":
            at = len(text) - len(text[at:].lstrip("*"))
            is_first = start == first_special  # git matches what is before by itself, and forgets that it is there
            is_deep = at - start > 1 and (is_first or text[start - 1 : start] == "/")
            if is_deep and text.startswith("\\/", at):
                runs[-1].append(_SLASH)
            if is_deep and text.startswith(("/", "\\/"), at):
                at = text.index("/", at) + 1
                runs.append([""])
            elif is_deep and at == len(text):
                runs[-1][-1] += ".+" if text[start - 1 : start] in ("", "/") else ".*"
            else:
                runs[-1].append("")
        elif char == "[":
            characters, at = _bracket(text, at)
            runs[-1][-1] += characters
        elif char == "?":
            runs[-1][-1] += "[^/]"
        else:
            char = text[at] if char == "\\" else char
            at += text[start] == "\\"
            runs[-1][-1] += _SLASH if char == "/" else re.escape(char)
    return runs


def _bracket(text: str, at: int) -> tuple[str, int]:
    """The class of a bracket that opens before `at`, and the place after it. Raises LookupError for an invalid one."""
    is_negated = text[at] in "!^"
    first = at = at + is_negated
    members = ""
    before = ""  # the character that a range may begin with
    while text[at] != "]" or at == first:
        if (name := _CLASS.match(text, at)) is not None:
            members += _CLASSES[name[1]]
            at = name.end()
            before = ""
            continue
        is_range = text[at] == "-" and before != "" and text[at + 1 : at + 2] != "]"
        at += is_range
        at += text[at] == "\\"
        char = text[at]
        if not is_range or before <= char:
            members += "-" * is_range + re.escape(char)
        before = "" if is_range else char
        at += 1
    return f"(?!/)[{'^' * is_negated}{members}]", at + 1


def _joined(runs: Sequence[Sequence[str]]) -> str:
    """One regular expression. The groups are atomic, because backtracking could take exponential time.

    All runs but the last, and texts between asterisks, match where they come first: a later place matches no more.
    """
    body = ""
    for number, (first, *rest) in enumerate(runs):
        is_last = number == len(runs) - 1
        ending = f"[^/]*{rest.pop()}" if is_last and rest else ""
        run = first + "".join(f"(?>[^/]*?{part})" for part in rest) + ending
        body += run if number == 0 else f"(?:.*{_SLASH})?{run}" if is_last else f"(?>(?:.*?{_SLASH})??{run})"
    return body
