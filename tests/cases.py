"""Cases in text files: code that is easier to read outside of Python's strings."""

import re


def read_cases(path):
    """A title after `===`, a text, and named parts after `---`, for each case of a file.

    A text or part has no line end at its end, unless a blank line follows.
    """
    for case in re.split("^=== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, body = case.partition("\n")
        text, *parts = (part.removesuffix("\n") for part in re.split(r"^--- (\w+)\n", body, flags=re.MULTILINE))
        yield title, text, dict(zip(parts[::2], parts[1::2], strict=True))
