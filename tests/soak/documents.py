"""A model of open documents and notebooks, written from the specification of LSP 3.18. It shares no code with dg-lsp.

Where the specification is silent it follows what dg-lsp documents: a line after the last one is the end of the text, a
column inside a character is that character's start, and the ends of a range may be exchanged.
"""

import re

OPEN, CHANGE, CLOSE = "textDocument/didOpen", "textDocument/didChange", "textDocument/didClose"
OPEN_NOTEBOOK, CHANGE_NOTEBOOK = "notebookDocument/didOpen", "notebookDocument/didChange"
CLOSE_NOTEBOOK = "notebookDocument/didClose"
LINE_END = re.compile(r"\r\n|\n|\r")


def units(char, encoding):
    """Length of one character in the units of a position encoding."""
    if encoding == "utf-8":
        return len(char.encode())
    return 1 if encoding == "utf-32" or ord(char) <= 0xFFFF else 2


def readable(text):
    """The text as UTF-8 can hold it: JSON may have halves of surrogate pairs."""
    return "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)


class TextModel:
    """One open document."""

    def __init__(self, item, notebook=""):
        """`notebook` is the URI of the notebook that it is a cell of."""
        self.notebook = notebook
        self.language = item["languageId"]
        self.version = item["version"]
        self.text = readable(item["text"])

    def lines(self):
        """Start and end of each line, without its line end."""
        start = 0
        for match in LINE_END.finditer(self.text):
            yield start, match.start()
            start = match.end()
        yield start, len(self.text)

    def offset(self, position, encoding):
        """Index into the text of a position."""
        line = int(position["line"])
        character = position["character"]
        lines = [*self.lines()]
        if line < 0 or line >= len(lines):
            return 0 if line < 0 else len(self.text)
        at, end = lines[line]
        while at < end and character >= (size := units(self.text[at], encoding)):
            at += 1
            character -= size
        return at

    def position(self, offset, encoding):
        """Position of an index into the text; between CR and LF, the line's end."""
        number, (start, end) = max(line for line in enumerate(self.lines()) if line[1][0] <= offset)
        chars = self.text[start : min(offset, end)]
        return {"line": number, "character": sum(units(char, encoding) for char in chars)}

    def span(self, where, encoding):
        """The ends of a range, in ascending order."""
        return sorted(self.offset(where[end], encoding) for end in ("start", "end"))

    def change(self, params, encoding):
        """Applies the parameters of `textDocument/didChange`."""
        for change in params["contentChanges"]:
            text = readable(change["text"])
            start = 0
            end = len(self.text)
            if change.get("range") is not None:
                start, end = self.span(change["range"], encoding)
            self.text = self.text[:start] + text + self.text[end:]
        self.version = params["textDocument"]["version"]


class WorkspaceModel:
    """Texts by URI, and the URIs of cells in order by the URI of their notebook."""

    def __init__(self):
        self.documents = {}
        self.notebooks = {}

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
        self.notebooks[notebook["uri"]] = [cell["document"] for cell in notebook["cells"]]
        return closed | self._open_cells(notebook["uri"], params["cellTextDocuments"])

    def _open_cells(self, notebook, items):
        for item in items:
            self.documents[item["uri"]] = TextModel(item, notebook)
        return {item["uri"] for item in items}

    def _change_notebook(self, params, encoding):
        uri = params["notebookDocument"]["uri"]
        changed = (params["change"] or {}).get("cells") or {}
        touched = set()
        if uri not in self.notebooks:
            return touched
        if structure := changed.get("structure"):
            array = structure["array"]
            start = int(array["start"])
            end = start + int(array["deleteCount"])
            self.notebooks[uri][start:end] = [cell["document"] for cell in array.get("cells") or ()]
            touched |= self._close([cell["uri"] for cell in structure.get("didClose") or ()])
            touched |= self._open_cells(uri, structure.get("didOpen") or ())
        for cell in changed.get("textContent") or ():
            change = {"textDocument": cell["document"], "contentChanges": cell["changes"]}
            touched |= self._change(change, encoding)
        return touched

    def _close_notebook(self, params):
        uri = params["notebookDocument"]["uri"]
        self.notebooks.pop(uri, None)
        cells = [cell["uri"] for cell in params["cellTextDocuments"]]
        return self._close([*cells, *(uri_ for uri_, document in self.documents.items() if document.notebook == uri)])
