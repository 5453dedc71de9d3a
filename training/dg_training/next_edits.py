"""Fits the weights of repeated edits, `dg_lsp/engine/next_edit.toml`, to the histories of repositories."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dg_lsp.bench.next_edit import FileChange, NextEditCase, cases_of, cut_history
from dg_lsp.context.edit_history import Edit
from dg_lsp.engine.next_edit import Site, changes_of, sites_of

PENALTY = 1.0
"""Weight of the squared weights, in examples."""
NUM_STEPS = 12
"""Steps of Newton's method; the last ones change nothing."""


def examples(cases: Iterable[NextEditCase]) -> tuple[list[list[str]], list[bool]]:
    """The features of every site, and whether the change of tokens at it is one of the commit's."""
    features = list[list[str]]()
    labels = list[bool]()
    for case in cases:
        for site in sites_of(case.lines, case.history):
            features.append([*site.features])
            labels.append(_is_made(case, site))
    return features, labels


def _is_made(case: NextEditCase, site: Site) -> bool:
    """Whether a remaining edit replaces the tokens of a site, in its line, by the same ones."""
    return any(
        (same.old, same.new) == (site.change.old, site.change.new)
        for edit in case.edits_at(site.line)
        for same in changes_of(Edit(site.line, "", case.lines.text[edit.start : edit.end], edit.text, ""))
    )


def fit(features: list[list[str]], labels: list[bool]) -> dict[str, float]:
    """The weights of logistic regression by Newton's method."""
    names = sorted({name for row in features for name in row})
    column = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(features), len(names)), np.float32)
    for number, row in enumerate(features):
        matrix[number, [column[name] for name in row]] = 1
    target = np.array(labels, np.float32)
    weights = np.zeros(len(names))
    for _ in range(NUM_STEPS):
        probability = 1 / (1 + np.exp(-np.clip(matrix @ weights, -30, 30)))
        slope = matrix.T @ (probability - target) + PENALTY * weights
        curvature = (matrix * (probability * (1 - probability))[:, None]).T @ matrix
        weights -= np.linalg.solve(curvature + PENALTY * np.eye(len(names)), slope)
    return {name: round(float(weight), 2) for name, weight in zip(names, weights, strict=True)}


def fit_repositories(repositories: Sequence[Path], num_files: int) -> tuple[dict[str, float], int]:
    """The weights of the histories of repositories, and the number of examples."""
    changes = [change for repository in repositories for change in cut_history(repository, num_files)]
    shuffled = [_shuffled(change) for change in changes]
    features, labels = examples(case for change in (*changes, *shuffled) for case in cases_of(change))
    return fit(features, labels), len(labels)


def _shuffled(change: FileChange) -> FileChange:
    """The same edits in another order, because users also go on above their last edit."""
    edits = list(change.edits)
    random.Random(len(change.text)).shuffle(edits)
    return replace(change, edits=tuple(edits))


def write_weights(path: Path, weights: Mapping[str, float]) -> None:
    """Writes the table that `dg_lsp.engine.next_edit` reads."""
    lines = [f'"{name}" = {weight}\n' for name, weight in weights.items()]
    path.write_text(
        "# Weights of logistic regression, by feature; python -m dg_training next-edits writes them.\n"
        "[weights]\n" + "".join(lines),
        encoding="utf-8",
    )
