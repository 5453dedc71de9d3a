"""What it costs and what it changes to move the suffix of a prefix-first prompt instead of decoding it again.

    python benchmarks/moved_suffix.py MODEL --cases CASES.jsonl.gz [--num 20] [--keys 1 10 100] [--fills]

CASES has test cases in the format of HumanEval-Infilling. Every case is edited in three ways: the last N characters
of the prefix are typed one by one, they are pasted at once, or N/2 characters are typed and deleted again. Then the
logits of the first token are compared with those of the same prompt decoded afresh: Kullback-Leibler divergence in
nats, and the same best token. With `--fills`, the first line is decoded greedily both ways, and compared with the
reference. A model without fill-in-the-middle tokens gets three unused ones as sentinels. Models that were trained with
the suffix first give no sensible line otherwise: `--swapped` edits their suffix, and moves the prefix. Times are of the
processor.
"""

import argparse
import gzip
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel, kv_cache
from dg_lsp.canvas.layout import TokenIds, token_ids
from dg_lsp.canvas.spec import FimOrder, FimTokens, ModelSpec
from dg_lsp.cli.loading import load_model
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.settings import ModelSettings, Settings

MAX_FILL = 32
WAYS = ("typed", "pasted", "typed and deleted")


class Model:
    """A prefix-first model and its logits; slot 0 is moved, slot 1 is always decoded afresh."""

    def __init__(self, path: str, threads: int, *, is_swapped: bool) -> None:
        settings = Settings(model=ModelSettings(name=path, gpu_layers=0, threads=threads, num_slots=2))
        loaded = load_model(settings)
        assert isinstance(loaded.weights, LlamaModel)
        spec = loaded.spec
        unused = [token for token in spec.banned_ids if token not in spec.start_ids][-3:]
        ids = (spec.fim.prefix_id, spec.fim.suffix_id, spec.fim.middle_id) if spec.fim else tuple(unused)
        first, second, middle = (ids[1], ids[0], ids[2]) if is_swapped else ids
        self.fim = FimTokens(first, second, middle, FimOrder.PREFIX_FIRST)
        self.spec: ModelSpec = replace(spec, fim=self.fim, has_causal_head=True)
        self.denoiser = LlamaDenoiser(loaded.weights, self.spec, settings.model)
        self.encode, self.decode = self.denoiser.tokenizer.encode, self.denoiser.tokenizer.decode
        self._reduce = self.denoiser._reducer.reduce
        self.denoiser._reducer.reduce = self._recorded  # type: ignore[method-assign]
        self.logits: Floats = np.empty(0, np.float32)

    def _recorded(self, logits: Floats, *arguments: Any, **options: Any) -> Any:
        self.logits = logits[-1].copy()
        return self._reduce(logits, *arguments, **options)

    def prompt(self, prefix: str, suffix: str) -> TokenIds:
        """All but the middle sentinel."""
        fim = self.fim
        parts = [[fim.prefix_id], self.encode(prefix), [fim.suffix_id], self.encode(suffix)]
        return token_ids(np.concatenate([self.spec.start_ids, *parts]))

    def prefill(self, slot: int, ids: TokenIds) -> tuple[int, float]:
        """Decoded tokens, and seconds of this process."""
        began = time.process_time()
        return self.denoiser.prefill(slot, ids), time.process_time() - began

    def first(self, slot: int) -> npt.NDArray[np.float64]:
        """Log probabilities of the first token of the middle."""
        self.denoiser.extend(slot, token_ids([self.fim.middle_id]))
        shifted = self.logits.astype(np.float64) - self.logits.max()
        result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
        return result

    def line(self, slot: int, first: int) -> str:
        """Greedy first line after the first token."""
        ids = [first]
        while len(ids) < MAX_FILL and ids[-1] not in self.spec.end_ids and b"\n" not in self.decode(token_ids(ids)):
            ids.append(int(self.denoiser.extend(slot, token_ids(ids[-1:])).argmax_ids[0]))
        return self.decode(token_ids(ids)).decode("utf-8", "replace").split("\n")[0].rstrip()


def edits(prefix: str, way: str, num: int) -> Iterator[str]:
    """The prefix after each edit, the first one as it was; the last one is always the whole prefix."""
    if way == "typed and deleted":
        text = prefix[-max(1, num // 2) :]
        yield from (prefix + text[:end] for end in [*range(len(text)), *range(len(text), -1, -1)])
    else:
        yield prefix[:-num]
        yield from (prefix[:end] for end in range(len(prefix) - num + 1, len(prefix)) if way == "typed")
        yield prefix


def compare(model: Model, prefix: str, suffix: str, way: str, num: int, reference: str | None) -> dict[str, Any]:
    """One case, edited in one way."""
    model.prefill(0, token_ids([]))
    model.prefill(1, token_ids([]))
    first, *others = [model.prompt(text, suffix) for text in edits(prefix, way, num)]
    model.prefill(0, first)
    costs = [model.prefill(0, ids) for ids in others]
    drift = model.denoiser.drift(0)
    _, fresh_seconds = model.prefill(1, others[-1])
    moved, fresh = model.first(0), model.first(1)
    best = int(fresh.argmax()), int(moved.argmax())
    result: dict[str, Any] = {
        "way": way,
        "num": num,
        "drift": drift,
        "kl": float((np.exp(fresh) * (fresh - moved)).sum()),
        "same": best[0] == best[1],
        "decoded": [count for count, _ in costs],
        "ms": 1e3 * float(np.median([seconds for _, seconds in costs])),
        "fresh_ms": 1e3 * fresh_seconds,
    }
    if reference is not None:
        lines = [model.line(slot, token) for slot, token in enumerate(reversed(best))]
        result |= {"same_line": lines[0] == lines[1], "exact": [line == reference for line in reversed(lines)]}
    return result


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cases of one way and number of edits."""
    kl = [row["kl"] for row in rows]
    found = {"cases": len(rows), "drift": float(np.median([row["drift"] for row in rows]))}
    found |= {"kl_median": float(np.median(kl)), "kl_p90": float(np.quantile(kl, 0.9)), "kl_max": max(kl)}
    found |= {"same_best": sum(row["same"] for row in rows)}
    found |= {name: float(np.median([row[name] for row in rows])) for name in ("ms", "fresh_ms")}
    decoded = [count for row in rows for count in row["decoded"]]
    found |= {"decoded_median": float(np.median(decoded)), "decoded_max": max(decoded)}
    found |= {"more_than_16": sum(count > 16 for count in decoded), "edits": len(decoded)}
    if "exact" in rows[0]:
        found |= {"same_line": sum(row["same_line"] for row in rows)}
        found |= {"exact_fresh": sum(row["exact"][0] for row in rows), "exact": sum(row["exact"][1] for row in rows)}
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chars", type=int, nargs=2, default=[1200, 800], help="of prefix and suffix")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--fills", action="store_true")
    parser.add_argument("--swapped", action="store_true")
    given = parser.parse_args()
    kv_cache.MAX_EDITS = 10**6  # type: ignore[misc]
    model = Model(given.model, given.threads, is_swapped=given.swapped)
    opened = gzip.open if given.cases.suffix == ".gz" else open
    with opened(given.cases, "rt", encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    before, after = given.chars
    cases = [case for case in cases if len(case["prompt"]) > max(before // 2, 200) and len(case["suffix"]) > 200]
    rng = np.random.default_rng(0)
    chosen = [cases[number] for number in rng.permutation(len(cases))[: given.num]]
    for way in given.ways:
        for num in given.keys:
            rows = []
            for case in chosen:
                reference = case["canonical_solution"].split("\n")[0].rstrip() if given.fills else None
                texts = case["prompt"][-before:], case["suffix"][:after]
                first, second = reversed(texts) if given.swapped else texts
                rows.append(compare(model, first, second, way, num, reference))
            print(json.dumps({"way": way, "num": num, **summary(rows)}), flush=True)


if __name__ == "__main__":
    main()
