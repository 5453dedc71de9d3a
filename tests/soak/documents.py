"""A model of open documents and notebooks, written from the specification of LSP 3.18. It shares no code with dg-lsp.

Where the specification is silent it follows what dg-lsp documents: a line after the last one is the end of the text, a
column inside a character is that character's start, and the ends of a range may be exchanged.
"""

import re
from dataclasses import dataclass

OPEN, CHANGE, CLOSE = "textDocument/didOpen", "textDocument/didChange", "textDocument/didClose"
OPEN_NOTEBOOK, CHANGE_NOTEBOOK = "notebookDocument/didOpen", "notebookDocument/didChange"
CLOSE_NOTEBOOK = "notebookDocument/didClose"
PLAIN = "plaintext"
"""Language of cells that are no context for each other."""
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


@dataclass(frozen=True)
class Cells:
    """The texts of the cells around one of a notebook, of its kind and language."""

    above: tuple
    below: tuple

    def are_around(self, before, after, *, is_before_cut, is_after_cut):
        """Whether the texts before and after a cell have the lines of these cells, blank ones apart.

        A text that is cut has no line ends to compare at that end: its outermost line is left out.
        """
        above, below = (_lines("\n".join(texts)) for texts in (self.above, self.below))
        return _are_last(_lines(before), above, is_cut=is_before_cut) and _are_last(
            _lines(after)[::-1], below[::-1], is_cut=is_after_cut
        )


def _lines(text):
    return [line.rstrip() for line in LINE_END.split(text) if line.strip()]


def _are_last(found, lines, *, is_cut):
    """Whether the lines found are all, or the last ones if the text is cut."""
    if is_cut:
        found = found[1:]
        lines = lines[len(lines) - len(found) :] if len(found) <= len(lines) else None
    return found == lines


class WorkspaceModel:
    """Texts by URI, and the cells of notebooks."""

    def __init__(self):
        self.documents = {}
        self.notebooks = {}
        """Pairs of URI and kind of the cells in order, by the URI of the notebook."""

    def apply(self, method, params, encoding):
        """Applies a valid message; returns the URIs of the documents that it opens, changes and closes."""
        handlers = {
            OPEN: self._open,
            CHANGE: lambda given: self._change(given, encoding),
            CLOSE: lambda given: self._close([given["textDocument"]["uri"]]),
            OPEN_NOTEBOOK: self._open_notebook,
            CHANGE_NOTEBOOK: lambda given: self._change_notebook(given, encoding),
            CLOSE_NOTEBOOK: self._close_notebook,
        }
        return handlers[method](params) if method in handlers else set()

    def cells(self, uri):
        """The cells around a document; None if it is no cell of an open notebook."""
        document = self.documents[uri]
        cells = self.notebooks.get(document.notebook)
        if cells is None:
            return None
        kinds = {}
        for one, kind in cells:
            kinds.setdefault(one, kind)
        if uri not in kinds:
            return Cells((), ())
        uris = [one for one, kind in kinds.items() if kind == kinds[uri]]
        at = uris.index(uri)
        return Cells(self._texts(uris[:at], document.language), self._texts(uris[at + 1 :], document.language))

    def _texts(self, uris, language):
        found = [self.documents[one] for one in uris if one in self.documents]
        return tuple(one.text for one in found if one.language == language != PLAIN)

    def _open(self, params):
        item = params["textDocument"]
        self.documents[item["uri"]] = TextModel(item)
        return {item["uri"]}

    def _change(self, params, encoding):
        uri = params["textDocument"]["uri"]
        if uri in self.documents:
            self.documents[uri].change(params, encoding)
        return {uri}

    def _close(self, uris):
        for uri in uris:
            self.documents.pop(uri, None)
        return {*uris}

    def _open_notebook(self, params):
        notebook = params["notebookDocument"]
        closed = self._close_notebook({"notebookDocument": notebook, "cellTextDocuments": ()})
        self.notebooks[notebook["uri"]] = [_cell(one) for one in notebook["cells"]]
        return closed | self._open_cells(notebook["uri"], params["cellTextDocuments"])

    def _open_cells(self, notebook, items):
        for item in items:
            self.documents[item["uri"]] = TextModel(item, notebook)
        return {item["uri"] for item in items}

    def _change_notebook(self, params, encoding):
        uri, changed = params["notebookDocument"]["uri"], (params["change"] or {}).get("cells") or {}
        touched = set()
        if uri not in self.notebooks:
            return touched
        if structure := changed.get("structure"):
            array = structure["array"]
            start = int(array["start"])
            end = start + int(array["deleteCount"])
            self.notebooks[uri][start:end] = [_cell(one) for one in array.get("cells") or ()]
            touched |= self._close([one["uri"] for one in structure.get("didClose") or ()])
            touched |= self._open_cells(uri, structure.get("didOpen") or ())
        kinds = dict(map(_cell, changed.get("data") or ()))
        self.notebooks[uri] = [(one, kinds.get(one, kind)) for one, kind in self.notebooks[uri]]
        for one in changed.get("textContent") or ():
            change = {"textDocument": one["document"], "contentChanges": one["changes"]}
            touched |= self._change(change, encoding)
        return touched

    def _close_notebook(self, params):
        uri = params["notebookDocument"]["uri"]
        cells = [one for one, _ in self.notebooks.pop(uri, ())]
        cells += [one for one, document in self.documents.items() if document.notebook == uri]
        return self._close([*cells, *(one["uri"] for one in params["cellTextDocuments"])])


def _cell(cell):
    return cell["document"], cell["kind"]
