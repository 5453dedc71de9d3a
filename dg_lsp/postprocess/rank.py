"""Several results to one list: distinct candidates, best first, and the reasons against the rest."""

from collections.abc import Iterable

from dg_lsp.postprocess.candidate import Candidate, Rejection


def rank(results: Iterable[Candidate | Rejection]) -> tuple[tuple[Candidate, ...], tuple[Rejection, ...]]:
    """Candidates by score, highest first, ties in order; of those that differ only by trailing blanks the best one."""
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for result in results:
        if isinstance(result, Candidate):
            candidates.append(result)
        else:
            rejections.append(result)
    best: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.score):
        best.setdefault(candidate.text.rstrip(), candidate)
    return tuple(best.values()), tuple(rejections)
