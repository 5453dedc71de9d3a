"""A model of an open document, written from the specification of LSP 3.18. Slow and simple; shares no code with dg-lsp.

Where the specification is silent it follows what dg-lsp documents: a line after the last one is the end of the text, a
column inside a character is that character's start, and the ends of a range may be exchanged.
"""

import re

LINE_END = re.compile(r"\r\n|\n|\r")


def units(char, encoding):
    """Length of one character in the units of a position encoding."""
    code = ord(char)
    if encoding == "utf-32":
        return 1
    if encoding == "utf-16":
        return 2 if code > 0xFFFF else 1
    return 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)


def readable(text):
    """The text as UTF-8 can hold it: JSON may have halves of surrogate pairs."""
    return "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)


class TextModel:
    """One open document."""

    def __init__(self, item, notebook=""):
        """`notebook` is the URI of the notebook that it is a cell of."""
        self.notebook = notebook
        self.language, self.version, self.text = item["languageId"], item["version"], readable(item["text"])

    def lines(self):
        """Start and end of each line, without its line end."""
        start = 0
        for match in LINE_END.finditer(self.text):
            yield start, match.start()
            start = match.end()
        yield start, len(self.text)

    def offset(self, position, encoding):
        """Index into the text of a position."""
        line, character = int(position["line"]), position["character"]
        if line < 0:
            return 0
        for number, (start, end) in enumerate(self.lines()):
            if number == line:
                at = start
                while at < end and character >= (size := units(self.text[at], encoding)):
                    at, character = at + 1, character - size
                return at
        return len(self.text)

    def position(self, offset, encoding):
        """Position of an index into the text; between CR and LF, the line's end."""
        for number, (start, end) in enumerate(self.lines()):
            last = number, start, min(offset, end)
            is_inside = offset == end + 1 and self.text[end : end + 2] == "\r\n"
            if offset <= end or is_inside:
                break
        number, start, end = last
        return {"line": number, "character": sum(units(char, encoding) for char in self.text[start:end])}

    def span(self, where, encoding):
        """The ends of a range, in ascending order."""
        return sorted(self.offset(where[end], encoding) for end in ("start", "end"))

    def change(self, params, encoding):
        """Applies the parameters of `textDocument/didChange`."""
        for change in params["contentChanges"]:
            text, start, end = readable(change["text"]), 0, len(self.text)
            if change.get("range") is not None:
                start, end = self.span(change["range"], encoding)
            self.text = self.text[:start] + text + self.text[end:]
        self.version = params["textDocument"]["version"]
