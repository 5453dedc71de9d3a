"""Every number of a training run, as frozen records. `tiny` trains on CPU cores, `mini` on one GPU."""

from dataclasses import dataclass, field

from dg_lsp.training.documents import Header
from dg_lsp.training.middles import MiddleShares
from dg_lsp.training.vocabulary import NUM_TOKENS


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """A qwen3-shaped transformer; sizes in channels."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int  # of the gated feed-forward layer
    head_width: int = 64
    num_tokens: int = NUM_TOKENS
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class RowConfig:
    """Shape of a batch: rows of `num_clean` packed tokens, each with `num_noisy` canvas slots."""

    rows: int
    num_clean: int
    num_noisy: int
    max_middle: int  # tokens; a longer middle is not asked for
    canvas_lengths: tuple[int, ...] = (8, 16, 32, 64)
    canvas_shares: tuple[float, ...] = (0.15, 0.40, 0.30, 0.15)
    middles: MiddleShares = field(default_factory=MiddleShares)
    header: Header = Header.NONE
    plain_share: float = 0.0  # of the rows: text without a middle
    resized_share: float = 0.0  # of the canvases on middles: as long as they may be, with expand and delete tokens
    max_copies: int = 4  # times every middle is denoised in one row, with other lengths and masks

    @property
    def max_prompt(self) -> int:
        """Tokens of prefix and suffix together: whatever the middle's length, the document fits a row."""
        return self.num_clean - self.max_middle - 4


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """Muon on the matrices, AdamW on the embedding and the norms."""

    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    clip: float = 1.0
    warmup_steps: int = 60
    decay_from: float = 0.6  # share of the planned time; flat before, linear to zero after
    ema_decay: float = 0.995


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A whole run."""

    name: str
    network: NetworkConfig
    rows: RowConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    causal_share: float = 0.5  # share of the steps that see no canvas: half the cost, the same weights
    causal_until: float = 0.6  # share of the planned time after which every step sees canvases
    next_weight: float = 1.0  # of the next-token loss beside the denoising loss
    inverse_rate: float = 0.0  # weight of a slot, 1 / share hidden of its canvas, is cut here; 0 weighs all the same
    fill_weight: float = 0.1  # of the end tokens that fill a canvas after the first
    lead_weight: float = 4.0  # added to the leftmost hidden slot of a canvas; halved for each one after it
    full_mask: float = 0.15  # share of canvases that are all masks
    left_mask: float = 0.30  # share of canvases whose left part is known, as when the leftmost mask is always taken
    minutes: float = 120.0
    checkpoint_minutes: float = 4.0
    seed: int = 1
    workers: int = 1


CONFIGS = {
    "tiny": TrainConfig(
        "tiny",
        NetworkConfig(width=256, layers=4, heads=4, kv_heads=2, hidden=704),
        RowConfig(rows=8, num_clean=384, num_noisy=384, max_middle=64),
    ),
    "mini": TrainConfig(
        "mini",
        NetworkConfig(width=512, layers=10, heads=8, kv_heads=4, hidden=1408),
        RowConfig(rows=64, num_clean=768, num_noisy=768, max_middle=128, max_copies=6),
        OptimizerConfig(warmup_steps=300, ema_decay=0.999),
        minutes=25.0,
        checkpoint_minutes=4.0,
        workers=14,
    ),
}
