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
from dg_training.documents import sample_texts
from dg_training.export import training_progress, write_model
from dg_training.network import DiffusionNetwork
from dg_training.objective import ObjectiveConfig
from dg_training.pretrained import Origin, Pretrained, read_pretrained
from dg_training.rows import RowConfig
from dg_training.store import SPLITS, read_texts
from dg_training.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, PrunedVocabulary, count_tokens, prune, restrict
from dg_training.train import OptimizerConfig, TrainConfig, Trainer, TrainingProgress

MAX_TOKENS = 65_536
"""Largest vocabulary: token ids are stored in 16 bits."""
KEPT = "kept.npy"  # ids of the source in a pruned vocabulary
COUNTED_CHARS = 20_000_000  # of the corpus, by which the most frequent tokens are found
CONFIDENCE_THRESHOLD = 0.9
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
MIDDLE_WEIGHT = 4.0
CAUSAL_SHARE = 0.5  # of the steps that train canvases too
CHECKPOINT_MINUTES = 15.0
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
    checkpoint_minutes: float = CHECKPOINT_MINUTES
    is_resumed: bool = False
    rows: RowConfig | None = None


class Adaptation:
    """A run that adapts a model: its network, its configuration and the file that it writes."""

    def __init__(self, checkpoint: Path, root: Path, name: str, options: AdaptOptions) -> None:
        """Prepares a run whose corpus is in `root` and whose state is in `root/adapted/NAME`.

        A checkpoint that an adaptation exported is trained further: its vocabulary stays as it is.

        Raises:
            InputFileError: the corpus or the checkpoint is missing, or the checkpoint states no licence.
            ModelError: the checkpoint is damaged or not supported.
        """
        model = read_pretrained(checkpoint)
        self.origin = model.origin if not options.licence else Origin(model.origin.name, options.licence)
        if not self.origin.licence:
            raise InputFileError(f"{checkpoint} states no licence: pass --licence with the identifier of its card")
        self.checkpoint, self.options, self.folder = checkpoint, options, root / "adapted" / name
        if options.is_resumed:
            pruned = prepared_vocabulary(model, self.folder)
        else:
            pruned = prepare_vocabulary(model, root, self.folder, options.num_tokens)
        self.vocabulary, self.num_tokens = pruned.vocabulary, len(pruned.source_ids)
        self.facts = {
            "vocabulary": self.num_tokens,
            "of": len(model.vocabulary.tokens),
            "name": self.origin.name,
            "licence": self.origin.licence,
        }
        self.config = train_config(model, self.num_tokens, options)
        self.network = model.network(pruned)
        self._context_length = model.context_length

    def trainer(self) -> Trainer:
        """The trainer of the network. It counts the tokens on from those that the checkpoint states."""
        trainer = Trainer(self.folder, self.config, device=self.options.device, network=self.network)
        trainer.progress = TrainingProgress(tokens=training_progress(self.checkpoint)[1])
        if self.options.is_resumed:
            trainer.resume()
        return trainer

    def export(self, path: Path, network: DiffusionNetwork, progress: TrainingProgress) -> None:
        """Write the model file, and its card beside it."""
        options = self.options
        metadata = self.config.metadata(
            progress.tokens,
            name=options.name or f"{self.origin.name} dg",
            description=f"{self.origin.name}, adapted to fill code; vocabulary pruned to {self.num_tokens} tokens",
            origin=self.origin,
            steps=progress.step,
            seconds=progress.seconds,
            context_length=self._context_length,
            repetition_match=0,
            is_shifted=True,
            has_canvases=not options.is_causal,
            start_ids=self.config.rows.start_ids,
            confidence_threshold=CONFIDENCE_THRESHOLD,
        )
        write_model(path, network, self.vocabulary, metadata, options.file_type)
        card = model_card(self.origin, self.checkpoint, self.num_tokens, progress.tokens)
        path.with_suffix(".md").write_text(card, encoding="utf-8")


def adapt(checkpoint: Path, root: Path, out: Path, options: AdaptOptions, show: Show) -> None:
    """Prunes, trains and exports; raises as `Adaptation` does.

    The file is written with each checkpoint of the run; SIGTERM ends the run after its current step.
    """
    adaptation = Adaptation(checkpoint, root, out.stem, options)
    show(adaptation.facts)
    if options.max_steps == 0:
        adaptation.export(out, adaptation.network, TrainingProgress(tokens=training_progress(checkpoint)[1]))
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


def train_config(model: Pretrained, num_tokens: int, options: AdaptOptions) -> TrainConfig:
    """The configuration of a run."""
    start_ids = () if model.vocabulary.start_id is None else (END_OF_TEXT,)
    is_gpu = options.device.startswith("cuda")
    rows = options.rows or (GPU_ROWS if is_gpu else CPU_ROWS)
    return TrainConfig(
        "adapt",
        replace(model.config, num_tokens=num_tokens),
        replace(rows, start_ids=start_ids),
        OptimizerConfig(
            options.learning_rate, weight_decay=0.01, warmup_steps=20, decay_from=0.8, ema_decay=0.99, has_muon=False
        ),
        ObjectiveConfig(middle_weight=MIDDLE_WEIGHT, is_shifted=True),
        causal_share=1.0 if options.is_causal else CAUSAL_SHARE,
        causal_until=1.0,
        minutes=options.minutes,
        checkpoint_minutes=options.checkpoint_minutes,
        loader_processes=GPU_LOADERS if is_gpu else 0,
        has_rounded_weights=options.file_type == "IQ4_NL",
    )


# the card

_TERMS = {
    "apache-2.0": (
        "You may use, change and pass on this file, with a copy of the Apache Licence 2.0, the notices of the original "
        "and a note that it was changed."
    ),
    "mit": "You may use, change and pass on this file, with the copyright notice of the original and its licence.",
    "gemma": (
        "This file is a Model Derivative under the Gemma Terms of Use, which are not an open source licence. If you "
        "pass it on, pass on a copy of these terms with the restrictions of section 3.2, state that the model was "
        'changed, and add a file `NOTICE` with the text "Gemma is provided under and subject to the Gemma Terms of Use '
        'found at ai.google.dev/gemma/terms".'
    ),
}


def model_card(origin: Origin, checkpoint: Path, num_tokens: int, num_seen: int) -> str:
    """What the file is, and what may be done with it."""
    terms = _TERMS.get(origin.licence.lower(), "Read the licence of the original before you pass on this file.")
    named = " ".join(part for part in (origin.licence, origin.licence_name, origin.licence_link) if part)
    return (
        f"# {origin.name} dg\n\nMade from `{checkpoint.name}` ({origin.name}) with `python -m dg_training adapt`. "
        f"Its vocabulary is pruned to {num_tokens} tokens. It is trained on {num_seen} tokens of code to fill in the "
        f"middle and to denoise a canvas.\n\nLicence: {named}. {terms}\n"
    )
