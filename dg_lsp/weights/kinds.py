"""The number formats of ggml: how many weights a block holds, and in how many bytes (ggml.h, ggml-common.h)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One format; rows are whole blocks."""

    number: int
    """ggml's own, as files hold it."""
    name: str
    block_weights: int
    block_bytes: int

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` weights.

        Raises:
            ValueError: the row is no whole number of blocks.
        """
        if width % self.block_weights:
            raise ValueError(f"rows of {width} weights cannot be held as {self.name}")
        return width // self.block_weights * self.block_bytes


KINDS = {
    kind.number: kind
    for kind in (
        Kind(0, "F32", 1, 4),
        Kind(1, "F16", 1, 2),
        Kind(2, "Q4_0", 32, 18),
        Kind(3, "Q4_1", 32, 20),
        Kind(6, "Q5_0", 32, 22),
        Kind(7, "Q5_1", 32, 24),
        Kind(8, "Q8_0", 32, 34),
        Kind(10, "Q2_K", 256, 84),
        Kind(11, "Q3_K", 256, 110),
        Kind(12, "Q4_K", 256, 144),
        Kind(13, "Q5_K", 256, 176),
        Kind(14, "Q6_K", 256, 210),
        Kind(16, "IQ2_XXS", 256, 66),
        Kind(17, "IQ2_XS", 256, 74),
        Kind(18, "IQ3_XXS", 256, 98),
        Kind(19, "IQ1_S", 256, 50),
        Kind(20, "IQ4_NL", 32, 18),
        Kind(21, "IQ3_S", 256, 110),
        Kind(22, "IQ2_S", 256, 82),
        Kind(23, "IQ4_XS", 256, 136),
        Kind(24, "I8", 1, 1),
        Kind(25, "I16", 1, 2),
        Kind(26, "I32", 1, 4),
        Kind(27, "I64", 1, 8),
        Kind(28, "F64", 1, 8),
        Kind(29, "IQ1_M", 256, 56),
        Kind(30, "BF16", 1, 2),
        Kind(34, "TQ1_0", 256, 54),
        Kind(35, "TQ2_0", 256, 66),
        Kind(39, "MXFP4", 32, 17),
        Kind(40, "NVFP4", 64, 36),
    )
}
"""By number."""

F32, F16, BF16 = KINDS[0], KINDS[1], KINDS[30]
