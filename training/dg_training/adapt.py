"""Adapts a pretrained causal model: a pruned vocabulary, fill-in-the-middle and block diffusion.

A prompt stays causal and a position predicts the next token as before, so the model decodes autoregressively all the
time. A canvas is bidirectional; its first position is predicted by the last token of the prompt, which sees no canvas,
so that the guess is the causal model's own.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dg_lsp.errors import InputFileError
from dg_training.documents import sample_texts
from dg_training.export import write_model
from dg_training.network import DiffusionNetwork
from dg_training.pretrained import Pretrained, TrainingProgress, read_pretrained
from dg_training.rows import RowConfig, RowSource
from dg_training.store import read_texts
from dg_training.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, PrunedVocabulary, count_tokens, prune, restrict
from dg_training.train import AdaptOptions, Show, Trainer

MAX_TOKENS = 65_536
"""Largest vocabulary: token ids are stored in 16 bits."""
SOURCE_IDS = "source_ids"
"""Key of a checkpoint: where the tokens of its vocabulary come from."""
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


def checkpoint_path(root: Path, name: str) -> Path:
    """The checkpoint of a run."""
    return root / "adapted" / name / "checkpoint.pt"


class Adaptation:
    """A run that adapts a model: its network, its configuration and the file that it writes."""

    def __init__(self, checkpoint: Path, root: Path, name: str, options: AdaptOptions) -> None:
        """Prepares the run `name`, whose corpus and state are in `root`.

        A checkpoint that an adaptation exported is trained further: its vocabulary stays as it is.

        Raises:
            InputFileError: the corpus or a run to resume is missing, or the checkpoint states no licence.
            ModelError: the checkpoint is missing, damaged or not supported.
        """
        self.checkpoint = checkpoint
        self.options = options
        self._source = source = read_pretrained(checkpoint, options.licence)
        self._path = checkpoint_path(root, name)
        if options.is_resumed and not self._path.exists():
            raise InputFileError(f"no run has written {self._path}: leave out --resume")
        self._pruned = pruned = _vocabulary(source, root, self._path, options)
        self.vocabulary = pruned.vocabulary
        self.facts = {
            "vocabulary": len(pruned.source_ids),
            "of": len(source.vocabulary.tokens),
            "name": source.name,
            "licence": source.licence,
        }
        self.rows = RowSource(
            root,
            self.vocabulary.tokenizer(),
            replace(
                GPU_ROWS if options.device.startswith("cuda") else CPU_ROWS,
                start_ids=() if source.vocabulary.start_id is None else (END_OF_TEXT,),
            ),
        )
        self.network = source.network(pruned)
        self.progress = TrainingProgress(tokens=source.progress.tokens)
        """At the start of a run; the tokens of the checkpoint count."""
        if options.is_continued:
            self.progress = source.progress

    def trainer(self) -> Trainer:
        """The trainer of the network."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(self._path, self.rows, self.options, self.network)
        trainer.facts[SOURCE_IDS] = torch.from_numpy(self._pruned.source_ids)
        trainer.progress = self.progress
        if self.options.is_resumed:
            trainer.resume()
        return trainer

    def export(self, path: Path, network: DiffusionNetwork, progress: TrainingProgress) -> None:
        """Write the model file, and its card beside it."""
        write_model(
            path,
            network,
            self.vocabulary,
            self._source,
            self.rows.config,
            progress,
            name=self.options.name,
            has_canvases=not self.options.is_causal,
            file_type=self.options.file_type,
        )
        name = self._source.name
        path.with_suffix(".md").write_text(
            f"# {name} dg\n\nMade from `{self.checkpoint.name}` ({name}) with `python -m dg_training adapt`. "
            f"Its vocabulary is pruned to {len(self.vocabulary.tokens)} tokens. It is trained on {progress.tokens} "
            f"tokens of code to fill in the middle and to denoise a canvas.\n\nLicence: {self._source.licence}, that "
            "of the original. Read it before you pass on this file: it may require its text, notices and a note that "
            "the file was changed.\n",
            encoding="utf-8",
        )


def adapt(checkpoint: Path, root: Path, out: Path, options: AdaptOptions, show: Show) -> None:
    """Prunes, trains and exports; raises as `Adaptation` does.

    The file is written with each checkpoint of the run; SIGTERM ends the run after its current step.
    """
    adaptation = Adaptation(checkpoint, root, out.stem, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    show(adaptation.facts)
    if options.max_steps == 0 and not options.is_resumed:
        adaptation.export(out, adaptation.network, adaptation.progress)
        return
    trainer = adaptation.trainer()
    with trainer.stopped_by_signal():
        trainer.run(show, on_save=lambda: adaptation.export(out, trainer.average, trainer.progress))


def _vocabulary(source: Pretrained, root: Path, checkpoint: Path, options: AdaptOptions) -> PrunedVocabulary:
    """The tokens that the corpus uses most, or those of a run that is resumed.

    A vocabulary that begins with our special tokens was pruned before, and is kept.
    """
    tokens = source.vocabulary.tokens
    if tokens[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS:
        return PrunedVocabulary(source.vocabulary, np.arange(len(tokens)))
    if options.is_resumed:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        if SOURCE_IDS not in saved:
            raise InputFileError(f"{checkpoint} is of an earlier version of this program: leave out --resume")
        return restrict(source.vocabulary, saved[SOURCE_IDS][len(SPECIAL_TOKENS) :].tolist())
    texts = sample_texts(read_texts(root / "train.jsonl.xz"), COUNTED_CHARS)
    counts = count_tokens(source.vocabulary.tokenizer(), texts)
    return prune(source.vocabulary, counts, min(options.num_tokens, MAX_TOKENS))
