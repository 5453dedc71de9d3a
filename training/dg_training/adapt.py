"""Adapts a pretrained causal model: a pruned vocabulary, fill-in-the-middle and block diffusion.

A prompt stays causal and a position predicts the next token as before, so the model decodes autoregressively all the
time. A canvas is bidirectional; its first position is predicted by the last token of the prompt, which sees no canvas,
so that the guess is the causal model's own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dg_lsp.errors import InputFileError
from dg_training.documents import NUM_SENTINELS, sample_texts
from dg_training.export import ExportMetadata, TrainingProgress, training_progress, write_model
from dg_training.network import DiffusionNetwork
from dg_training.pretrained import Origin, Pretrained, read_pretrained
from dg_training.rows import RowConfig
from dg_training.store import SPLITS, read_texts
from dg_training.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, PrunedVocabulary, count_tokens, prune, restrict
from dg_training.train import TrainConfig, Trainer

MAX_TOKENS = 65_536
"""Largest vocabulary: token ids are stored in 16 bits."""
KEPT = "kept.npy"  # ids of the source in a pruned vocabulary
COUNTED_CHARS = 20_000_000  # of the corpus, by which the most frequent tokens are found
CPU_ROWS = RowConfig(
    num_rows=3,
    num_clean=768,  # prompts of up to 668 tokens
    num_noisy=384,
    max_middle=96,
    canvas_lengths=(8, 16),
    canvas_shares=(0.5, 0.5),
)
GPU_ROWS = RowConfig(
    num_rows=16,
    num_clean=1152,  # prompts of up to 1,020 tokens
    num_noisy=768,
    max_middle=128,
    canvas_lengths=(8, 16, 32),  # each is compiled once more
    canvas_shares=(0.35, 0.45, 0.20),
    max_copies=6,
)
GPU_LOADERS = 8  # processes that make batches: one tokenizes slower than a GPU trains
Show = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """How a model is adapted."""

    minutes: float = 60.0
    max_steps: int | None = None  # 0: prune and export only
    num_tokens: int = 32_768  # of the pruned vocabulary
    learning_rate: float = 2e-4
    is_causal: bool = False  # no canvases: text and middles only
    name: str = ""  # of the file; default: the checkpoint's
    licence: str = ""  # instead of the one that the checkpoint states
    file_type: str = "Q8_0"  # IQ4_NL: trained for it
    device: str = "cpu"
    checkpoint_minutes: float = 15.0
    is_resumed: bool = False
    rows: RowConfig | None = None


class Adaptation:
    """A run that adapts a model: its network, its configuration and the file that it writes."""

    def __init__(self, checkpoint: Path, root: Path, name: str, options: AdaptOptions) -> None:
        """Prepares a run whose corpus is in `root` and whose state is in `root/adapted/NAME`.

        A checkpoint that an adaptation exported is trained further: its vocabulary stays as it is.

        Raises:
            InputFileError: the corpus is missing, or the checkpoint states no licence.
            ModelError: the checkpoint is missing, damaged or not supported.
        """
        self._model = model = read_pretrained(checkpoint)
        self.origin = Origin(model.origin.name, options.licence) if options.licence else model.origin
        if not self.origin.licence:
            raise InputFileError(f"{checkpoint} states no licence: pass --licence with the identifier of its card")
        self.checkpoint = checkpoint
        self.options = options
        self.folder = root / "adapted" / name
        if options.is_resumed:
            pruned = prepared_vocabulary(model, self.folder)
        else:
            pruned = prepare_vocabulary(model, root, self.folder, options.num_tokens)
        self.vocabulary = pruned.vocabulary
        self.num_tokens = len(pruned.source_ids)
        self.facts = {
            "vocabulary": self.num_tokens,
            "of": len(model.vocabulary.tokens),
            "name": self.origin.name,
            "licence": self.origin.licence,
        }
        is_gpu = options.device.startswith("cuda")
        start_ids = () if model.vocabulary.start_id is None else (END_OF_TEXT,)
        self.config = TrainConfig(
            rows=replace(options.rows or (GPU_ROWS if is_gpu else CPU_ROWS), start_ids=start_ids),
            learning_rate=options.learning_rate,
            minutes=options.minutes,
            checkpoint_minutes=options.checkpoint_minutes,
            is_causal=options.is_causal,
            has_rounded_weights=options.file_type == "IQ4_NL",
            loader_processes=GPU_LOADERS if is_gpu else 0,
        )
        self.network = model.network(pruned)
        self.progress = TrainingProgress(tokens=training_progress(checkpoint).tokens)
        """At the start of a run; the tokens of the checkpoint count."""

    def trainer(self) -> Trainer:
        """The trainer of the network."""
        trainer = Trainer(self.folder, self.config, self.network, device=self.options.device)
        trainer.progress = self.progress
        if self.options.is_resumed:
            trainer.resume()
        return trainer

    def export(self, path: Path, network: DiffusionNetwork, progress: TrainingProgress) -> None:
        """Write the model file, and its card beside it."""
        rows = self.config.rows
        metadata = ExportMetadata(
            name=self.options.name or f"{self.origin.name} dg",
            description=f"{self.origin.name}, adapted to fill code; vocabulary pruned to {self.num_tokens} tokens",
            origin=self.origin,
            canvas_lengths=rows.canvas_lengths,
            max_prompt_tokens=rows.max_prompt + NUM_SENTINELS,
            progress=progress,
            context_length=self._model.context_length,
            start_ids=rows.start_ids,
            has_canvases=not self.options.is_causal,
        )
        write_model(path, network, self.vocabulary, metadata, self.options.file_type)
        card = model_card(self.origin, self.checkpoint, self.num_tokens, progress.tokens)
        path.with_suffix(".md").write_text(card, encoding="utf-8")


def adapt(checkpoint: Path, root: Path, out: Path, options: AdaptOptions, show: Show) -> None:
    """Prunes, trains and exports; raises as `Adaptation` does.

    The file is written with each checkpoint of the run; SIGTERM ends the run after its current step.
    """
    adaptation = Adaptation(checkpoint, root, out.stem, options)
    show(adaptation.facts)
    if options.max_steps == 0:
        adaptation.export(out, adaptation.network, adaptation.progress)
        return
    trainer = adaptation.trainer()
    with trainer.stopped_by_signal():
        trainer.run(
            show, max_steps=options.max_steps, on_save=lambda: adaptation.export(out, trainer.average, trainer.progress)
        )


def prepare_vocabulary(model: Pretrained, root: Path, folder: Path, num_tokens: int) -> PrunedVocabulary:
    """The vocabulary of a run in `folder`: the tokens that the corpus of `root` uses most.

    A vocabulary that begins with our special tokens was pruned before, and is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if model.vocabulary.tokens[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS:
        pruned = PrunedVocabulary(model.vocabulary, np.arange(len(model.vocabulary.tokens)))
    else:
        files = read_texts(root / "train.jsonl.xz")
        counts = count_tokens(model.vocabulary.tokenizer(), sample_texts(files, COUNTED_CHARS))
        pruned = prune(model.vocabulary, counts, min(num_tokens, MAX_TOKENS))
    pruned.vocabulary.tokenizer().save(str(folder / "tokenizer.json"))
    np.save(folder / KEPT, pruned.source_ids)
    for split in SPLITS:
        link = folder / f"{split}.jsonl.xz"
        link.unlink(missing_ok=True)
        link.symlink_to((root / link.name).resolve())
    return pruned


def prepared_vocabulary(model: Pretrained, folder: Path) -> PrunedVocabulary:
    """The vocabulary of a run that was begun; InputFileError if there is none."""
    if not (folder / KEPT).exists():
        raise InputFileError(f"there is no run in {folder}: leave out --resume")
    ids = np.load(folder / KEPT)
    if ids[0] == 0 and len(ids) == len(model.vocabulary.tokens):
        return PrunedVocabulary(model.vocabulary, ids)
    return restrict(model.vocabulary, ids[len(SPECIAL_TOKENS) :].tolist())


def model_card(origin: Origin, checkpoint: Path, num_tokens: int, num_seen: int) -> str:
    """What the file is, and its licence."""
    licence = " ".join(part for part in (origin.licence, origin.licence_name, origin.licence_link) if part)
    return (
        f"# {origin.name} dg\n\nMade from `{checkpoint.name}` ({origin.name}) with `python -m dg_training adapt`. "
        f"Its vocabulary is pruned to {num_tokens} tokens. It is trained on {num_seen} tokens of code to fill in the "
        f"middle and to denoise a canvas.\n\nLicence: {licence}, that of the original. Read it before you pass on this "
        "file: it may require its text, notices and a note that the file was changed.\n"
    )
