"""The fill-in-the-middle formats of model families, from `fim_families.toml`.

The special tokens and the metadata of a model file select one.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources

from cattrs import Converter

from dg_lsp.canvas.spec import FimOrder, FimTemplate, FimTokens, PromptCut, SpecialTokens

_PIECES = re.compile(r"(<[^<>\s]+>|\[[A-Z]+\]|\{(?:files|prefix|suffix)\})")
_TOKEN = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
_NAME_KEYS = ("general.name", "general.basename", "general.base_model.0.name")
_BLANK = "\u2581"
"""SentencePiece's blank: Code Llama's tokens are spelled with one before them."""


@dataclass(frozen=True, slots=True)
class FimFamily:
    """A `[[fim]]` row: models with the same prompt. Formats are spelled as their authors publish them."""

    name: str
    """Also a value of `remote.fim`."""
    prompt: str
    """With the fields `{prefix}` and `{suffix}`."""
    sources: tuple[str, ...]
    repository: str = ""
    """Before the files, with the field `{repository}`."""
    file: str = ""
    """Another file, with the fields `{path}` and `{code}`; empty: files are comments before the prefix."""
    prompt_with_files: str = ""
    """With the fields `{files}` and `{path}`."""
    end: tuple[str, ...] = ()
    """Tokens that end a fill."""
    names: tuple[str, ...] = ()
    """Parts of a model's name, lower case with hyphens, that identify the family."""
    architectures: tuple[str, ...] = ()
    """Values of `general.architecture` that identify it."""
    vocabulary: tuple[str, ...] = ()
    """Special tokens that together identify it, whatever the model's name is."""
    cut: PromptCut = PromptCut.CHARACTER

    def split(self, text: str) -> tuple[str, str] | None:
        """Prefix and suffix of a prompt in this format; None for any other text."""
        first, second, *last = _TOKEN.findall(self.prompt)
        _, has_first, rest = text.partition(first)
        first_text, has_second, second_text = rest.partition(second)
        has_last = True
        if last:
            second_text, last_token, _ = second_text.rpartition(last[0])
            has_last = bool(last_token)
        if not (has_first and has_second and has_last):
            return None
        if " " in self.prompt:  # Code Llama puts blanks around its tokens
            first_text, second_text = first_text.removeprefix(" ").removesuffix(" "), second_text.removesuffix(" ")
        return (first_text, second_text) if self.order is FimOrder.PREFIX_FIRST else (second_text, first_text)

    @property
    def order(self) -> FimOrder:
        """Which part comes first."""
        is_prefix_first = self.prompt.index("{prefix}") < self.prompt.index("{suffix}")
        return FimOrder.PREFIX_FIRST if is_prefix_first else FimOrder.SUFFIX_FIRST

    def tokens(self, spellings: Mapping[str, int]) -> FimTokens | None:
        """The format in token ids; None if the vocabulary lacks one of its tokens.

        Files become comments if the vocabulary lacks only their tokens.
        """
        prompt = _compiled(self.prompt, spellings)
        if prompt is None:
            return None
        ids = [piece for piece in prompt if isinstance(piece, int)]
        order = self.order
        prefix_id, suffix_id = ids[:2] if order is FimOrder.PREFIX_FIRST else reversed(ids[:2])
        file, prompt_with_files = _compiled(self.file, spellings), _compiled(self.prompt_with_files, spellings)
        has_files = bool(file and prompt_with_files)
        return FimTokens(
            prefix_id,
            suffix_id,
            ids[2] if len(ids) > 2 else None,
            order,
            repository=_compiled(self.repository, spellings) or () if has_files else (),
            file=file or () if has_files else (),
            prompt_with_files=prompt_with_files or () if has_files else (),
            end_ids=tuple(token for spelling in self.end if (token := _id(spelling, spellings)) is not None),
            family=self.name,
            cut=self.cut,
        )


_TABLE = tomllib.loads((resources.files(__package__) / "fim_families.toml").read_text(encoding="utf-8"))
_ROWS = Converter(forbid_extra_keys=True).structure(_TABLE["fim"], list[FimFamily])
FIM_FAMILIES = {family.name: family for family in _ROWS}
"""By name, in the order in which they are tried."""


def find_fim(metadata: Mapping[str, str], filename: str, specials: SpecialTokens) -> FimTokens | None:
    """The fill-in-the-middle format of a model file, or None if it has none.

    A family matches only if the vocabulary has its tokens. The names and the architecture in the metadata decide; then
    special tokens that only one family has; then the file's name. Tokens of an unknown family are used prefix first.
    """
    spellings = specials.spellings
    find = partial(_id, spellings=spellings)
    known = {family: tokens for family in FIM_FAMILIES.values() if (tokens := family.tokens(spellings))}
    architecture = metadata.get("general.architecture", "")
    named = " ".join(metadata.get(key, "") for key in _NAME_KEYS)
    by_evidence = {
        "metadata": [family for family in known if architecture in family.architectures or _is_named(family, named)],
        "vocabulary": [family for family in known if family.vocabulary and None not in map(find, family.vocabulary)],
        "file name": [family for family in known if _is_named(family, filename)],
    }
    for evidence, families in by_evidence.items():
        if families:
            return replace(known[families[0]], evidence=evidence)
    return specials.fim


def _is_named(family: FimFamily, name: str) -> bool:
    simple = name.lower().replace(" ", "-").replace("_", "-")
    return any(part in simple for part in family.names)


def _compiled(template: str, spellings: Mapping[str, int]) -> FimTemplate | None:
    pieces: list[int | str] = []
    for piece in _PIECES.split(template):
        if not _TOKEN.fullmatch(piece):
            pieces += [piece] if piece.strip(" ") else []  # blanks are SentencePiece's, which the tokenizer adds itself
        elif (token := _id(piece, spellings)) is not None:
            pieces.append(token)
        else:
            return None
    return tuple(pieces)


def _id(spelling: str, spellings: Mapping[str, int]) -> int | None:
    return spellings.get(spelling, spellings.get(_BLANK + spelling))
