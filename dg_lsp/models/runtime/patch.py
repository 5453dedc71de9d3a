"""The one change to llama.cpp, kept as a patch. Blocks are found by what they say, not by their line numbers."""

import re
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import ModelRuntimeError

GEMMA4 = Path(__file__).with_name("gemma4.patch")


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified diff of one file."""

    target: str
    """The file's path inside llama.cpp."""
    hunks: tuple[tuple[str, str], ...]
    """What stood there, and what shall; each with the lines around it."""

    @classmethod
    def read(cls, path: Path = GEMMA4) -> "Patch":
        """The patch of a file; what stands before its first `---` is the reason, for people."""
        _, _, diff = path.read_text(encoding="utf-8").partition("\n--- a/")
        target, *hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)
        return cls(target.splitlines()[0], tuple((_side(hunk, "-"), _side(hunk, "+")) for hunk in hunks))

    def is_in(self, source: str) -> bool:
        """The source says already what the patch would make it say."""
        return all(new in source and old not in source for old, new in self.hunks)

    def apply(self, source: str, version: str) -> str:
        """The source with the change.

        Raises:
            ModelRuntimeError: it is not the source that the patch was made for; `version` is whose it is.
        """
        for old, new in self.hunks:
            if source.count(old) != 1:
                raise ModelRuntimeError(
                    f"{self.target} of llama-cpp-python {version} is not as dg-lsp knows it: update dg-lsp, "
                    "or install llama-cpp-python 0.3.36"
                )
            source = source.replace(old, new)
        return source


def _side(hunk: str, sign: str) -> str:
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in (" ", sign))
