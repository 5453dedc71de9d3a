"""A decoder at work for one request: the slot of the KV cache, the model as this request sees it, and the result."""

import math
import re
import time
from codecs import getincrementaldecoder
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Generator, Hashable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

import numpy as np

from dg_lsp.canvas.chat import split_thought
from dg_lsp.canvas.layout import (
    NOTHING,
    CachingTokenizer,
    Layout,
    TokenIds,
    TokenIndex,
    Tokenizer,
    common_prefix_length,
    token_ids,
)
from dg_lsp.canvas.spec import DecoderName, ModelSpec, Sampling
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Denoiser, Prediction
from dg_lsp.engine.decoder_selection import possible_decoders
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder, PromptLookupDecoder, SpeculativeDecoder
from dg_lsp.engine.decoders.base import (
    PROMPT_PIECE,
    Decoder,
    Draft,
    Limits,
    PrefillSpeed,
    Progress,
    RequestCosts,
    Result,
    Steps,
    StopCriteria,
)
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder, InfillDecoder
from dg_lsp.engine.request import Ending, FillResult, Verdict
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import MISFITS, Candidate, Reason, Rejection

MAX_CLIENTS = 16
"""Clients whose texts are cached."""
MAX_LAG = 8
"""Tokens of a prompt that its slot may lack: the first causal pass decodes them. Of blocks it may lack the last one."""


class KVSlots:
    """Which prompt each slot of the KV cache holds, least recently used first. Not thread-safe: owned by the engine.

    Slots are not shared between clients, because the time that reuse saves would tell one client what another wrote.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self._held: OrderedDict[int, TokenIds] = OrderedDict((slot, NOTHING) for slot in range(denoiser.num_slots))
        self._clients: dict[int, Hashable] = {}
        self.num_users: Counter[int] = Counter()
        """Requests that have begun and not ended, by slot."""
        self.user: object = None  # the request that used the model last
        self.is_crowded = False  # there was no memory for two prompts at a time

    def choose(self, prompt_ids: TokenIds, client: Hashable = 0, taken: Collection[int] = ()) -> int:
        """The client's slot that shares half of the prompt, start and end, or begins with it; none of those `taken`.

        Without such a slot, the least recently used. Slots of requests that have not ended are used only where all are
        in use.
        """
        possible = [slot for slot in self._held if slot not in taken]
        free = [slot for slot in possible if not self.num_users[slot]] or possible
        shared = {slot: self.num_alike(slot, prompt_ids, client) for slot in free}
        best = max(shared, key=lambda slot: shared[slot])
        num_shared = self.num_shared(best, prompt_ids, client)
        has_little = 2 * shared[best] < len(prompt_ids) and 2 * num_shared < len(self._held[best])
        slot = free[0] if has_little else best
        self.mark_used(slot)
        return slot

    def mark_used(self, slot: int) -> None:
        """Makes the slot the most recently used one."""
        self._held.move_to_end(slot)

    def kept_for_others(self, client: Hashable) -> set[int]:
        """The slots that other clients have used last, as many for each as its share of all slots."""
        used: dict[Hashable, list[int]] = {client: []}
        for slot, ids in self._held.items():
            if len(ids):
                used.setdefault(self._clients[slot], []).append(slot)
        share = math.ceil(len(self._held) / len(used))
        return {slot for owner, slots in used.items() if owner != client for slot in slots[-share:]}

    def num_missing(self, prompt_ids: TokenIds, client: Hashable = 0) -> int:
        """Tokens of the prompt that the client's best slot lacks and has to decode."""
        num_kept = self.num_alike if self._denoiser.moves_suffix else self.num_shared
        return len(prompt_ids) - max(num_kept(slot, prompt_ids, client) for slot in self._held)

    def num_shared(self, slot: int, prompt_ids: TokenIds, client: Hashable = 0) -> int:
        """How many of the prompt's first tokens the slot holds for the client."""
        return common_prefix_length(self._of(slot, client), prompt_ids)

    def claim(self, slot: int, client: Hashable) -> None:
        """Empties the slot if it has a prompt of another client."""
        if self._clients.setdefault(slot, client) != client:
            self._clients[slot] = client
            self._held[slot] = NOTHING
            self._denoiser.prefill(slot, NOTHING)

    def hold(self, slot: int, prompt_ids: TokenIds, client: Hashable = 0) -> None:
        """Records that the slot is for this prompt now."""
        self.claim(slot, client)
        self._held[slot] = prompt_ids

    def num_alike(self, slot: int, prompt_ids: TokenIds, client: Hashable = 0) -> int:
        """First and last tokens that the slot's prompt has in common with this one."""
        num_shared = self.num_shared(slot, prompt_ids, client)
        rest = self._of(slot, client)[num_shared:]
        return num_shared + common_prefix_length(rest[::-1], prompt_ids[num_shared:][::-1])

    def _of(self, slot: int, client: Hashable) -> TokenIds:
        return self._held[slot] if self._clients.get(slot, client) == client else NOTHING


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An open model as its requests share it. Belongs to the engine's thread."""

    denoiser: Denoiser
    tokenizer: Tokenizer
    spec: ModelSpec  # with the prompt format in use
    slots: KVSlots
    token_index: Callable[[], TokenIndex]  # made at the first call, since a large vocabulary takes half a second
    caching_tokenizer: Callable[[Hashable], Tokenizer]  # that of a client
    client: Hashable = 0
    speed: PrefillSpeed = field(default_factory=PrefillSpeed)

    @classmethod
    def of(cls, denoiser: Denoiser, tokenizer: Tokenizer) -> "EngineModel":
        """The model with its own prompt format and sampling, and with empty slots and caches."""
        caching = lru_cache(MAX_CLIENTS)(lambda _client: CachingTokenizer(tokenizer))
        token_index = cache(lambda: TokenIndex(tokenizer.pieces()))
        return cls(denoiser, caching(0), denoiser.spec, KVSlots(denoiser), token_index, caching)

    @property
    def room(self) -> int:
        """Tokens of prompt and answer that one slot takes, which may be more than the prompt of a fill; 0: unknown."""
        return max(0, self.denoiser.footprint.context_size - self.spec.longest_block)


class DecodeTask:
    """The model as one request sees it: one decoder, one layout and one slot of the KV cache.

    Its passes measure time. In causal passes, the first tokens of the fill spell the text that the prompt lacks before
    the cursor. Their confidence is that among the tokens that can.
    """

    def __init__(
        self,
        model: EngineModel,
        decoder: DecoderName,
        layout: Layout,
        limits: Limits,
        costs: RequestCosts,
        *,
        seed: int = 0,
        slot: int | None = None,
        judge: Callable[[bytes, float], Verdict] | None = None,
        is_answer: bool = False,
    ) -> None:
        """Chooses the slot if there is none. `judge` decides by its text and score what is shown.

        `is_answer`: to a conversation, so that a thought may come before the text.

        Raises:
            RequestError: the model lacks what the decoder needs.
        """
        possible = possible_decoders(model.spec)
        if decoder not in possible:
            raise RequestError(f"{model.spec.name} cannot run the decoder {decoder}: choose {' or '.join(possible)}")
        self.denoiser = model.denoiser
        self.spec = model.spec  # in the request's prompt format
        self.decoder = decoder
        self.layout = layout
        self.limits = limits
        self.max_length = limits.max_length or self.spec.longest_prompt + self.spec.longest_block
        """Most tokens of prompt and fill together that a canvas may follow."""
        self.costs = costs
        self.stop = StopCriteria(model.tokenizer.decode, limits, layout.stop, layout.removed)
        self.rng = np.random.default_rng(seed)
        self.slot = model.slots.choose(layout.prompt_ids, model.client) if slot is None else slot
        self.num_kept = model.slots.num_shared(self.slot, layout.prompt_ids, model.client)
        """First tokens of the layout's prompt that the slot holds."""
        model.slots.hold(self.slot, layout.prompt_ids, model.client)
        self._model = model
        self._num_there = self.num_kept
        """The same number while the prompt is decoded; `WHOLE_PROMPT` once the slot holds all of it."""
        self._held = NOTHING  # tokens that the request has put into the slot
        self._judge = judge
        self._is_answer = is_answer
        self._verdicts: dict[Draft, Verdict] = {}

    @property
    def sampling(self) -> Sampling:
        """The model's, which must have a canvas."""
        assert self.spec.sampling is not None
        return self.spec.sampling

    def drafts(self) -> Generator[Progress, None, tuple[Draft, ...]]:
        """The decoder's work, which begins with the first value: see `Decoder.run`."""
        return self.running(_DECODERS[self.decoder](self).run())

    def running(self, generator: Generator[Progress, None, Result]) -> Generator[Progress, None, Result]:
        """Steps that use the slot; the time in which the caller holds one is not counted.

        Where another request used the model between two values, the slot is decoded again in pieces.
        """
        slots = self._model.slots
        client = self._model.client
        prompt_ids = self.layout.prompt_ids
        steps = Steps(generator)
        slots.num_users[self.slot] += 1
        try:
            for progress in steps:
                with self.costs.stage("paused"):
                    yield replace(progress, task=self)
                if slots.user is not self and self._num_there == WHOLE_PROMPT:
                    slots.hold(self.slot, self._held, client)
                    yield from self.costs.relay(self.prefill(self._held))
        finally:
            slots.num_users[self.slot] -= 1
            if slots.num_shared(self.slot, prompt_ids, client) == len(prompt_ids):  # no other request took the slot
                slots.hold(self.slot, prompt_ids[: self._num_there], client)
        return steps.result

    def hold(self, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """Makes the slot hold this prompt, see `Denoiser.prefill`."""
        slots = self._model.slots
        slots.user = self
        slots.claim(self.slot, self._model.client)
        self._held = prompt_ids
        with self.costs.stage("prefill"):
            num_decoded = self.denoiser.prefill(self.slot, prompt_ids, most)
        is_done = num_decoded < most or num_decoded >= len(prompt_ids)
        self._num_there = WHOLE_PROMPT if is_done else self._num_there + num_decoded
        return num_decoded

    def prefill(self, prompt_ids: TokenIds) -> Generator[Progress, None, int]:
        """Like `hold`, but in pieces, with a value between two of them; stops where the limits are over.

        Returns how many tokens the slot lacked.
        """
        num_decoded = 0
        speed = self._model.speed
        while not self.limits.is_over():
            most = speed.piece(self.limits.deadline)
            began = time.perf_counter()
            num_new = self.hold(prompt_ids, most)
            speed.measure(num_new, time.perf_counter() - began)
            num_decoded += num_new
            if self._num_there == WHOLE_PROMPT:
                return num_decoded
            yield PROMPT_PIECE
        return len(prompt_ids) - self.num_kept

    def extend(self, ids: TokenIds, excluded: TokenIds = NOTHING) -> Prediction:
        """See `Denoiser.extend`; the token after the last one is not `excluded`, if another one is possible."""
        allowed = self._allowed(ids) if self.layout.removed else {}
        if len(excluded):
            last = len(ids) - 1
            possible = np.setdiff1d(allowed.get(last, np.arange(self.spec.vocab_size)), excluded)
            allowed |= {last: token_ids(possible)} if len(possible) else {}
        prediction = self.denoiser.extend(self.slot, ids, allowed)
        self._held = np.concatenate([self._held, ids])
        return prediction

    def _allowed(self, ids: TokenIds) -> dict[int, TokenIds]:
        """By position in a causal pass: the tokens that may follow, where the fill still spells `Layout.removed`."""
        removed = self.layout.removed
        num_known = self.layout.num_known
        num_before = len(self._held)
        held = np.concatenate([self._held, ids])
        allowed: dict[int, TokenIds] = {}
        first = max(0, num_known - num_before - 1)  # the positions before it are followed by known text
        for at in range(first, len(ids)):
            fill_ids = held[num_known : num_before + at + 1]
            if len(fill_ids) >= len(removed):  # a token has at least one byte
                break
            spelled = self.stop.decode(fill_ids)
            if len(spelled) < len(removed) and removed.startswith(spelled):
                possible = self._model.token_index().spelling(removed[len(spelled) :])
                allowed |= {at: possible} if len(possible) else {}
        return allowed

    def texts(self, ids: TokenIds) -> tuple[str, str]:
        """The thought before an answer, and the text from the cursor on."""
        if self._is_answer:
            return split_thought(ids, self._model.tokenizer, is_thinking=self.spec.is_thinking)
        return "", self.stop.decode(ids)[len(self.layout.removed) :].decode("utf-8", "replace")

    def is_done(self, draft: Draft) -> bool:
        """The draft after the passes so far meets the stop criteria."""
        return self.stop.ending(draft, self.costs.num_passes) is not None

    def verdict(self, draft: Draft) -> Verdict:
        """What the user would see of a draft, with its confidence; computed once for each draft."""
        if draft not in self._verdicts:
            with self.costs.stage("postprocess"):
                self._verdicts[draft] = self._judged(draft)
        return self._verdicts[draft]

    def _judged(self, draft: Draft) -> Verdict:
        assert self._judge is not None
        is_begun = not draft.is_empty and self.stop.is_spelled(draft.ids)
        if not (is_begun or draft.is_ended):
            return Rejection(Reason.UNFINISHED)
        verdict = self._judge(self.stop.shown_bytes(draft), draft.score)
        if isinstance(verdict, Rejection):
            return verdict
        ending = self.stop.ending(draft, self.costs.num_passes) or Ending.CONTEXT
        beginnings = self._beginnings(draft)
        # the shown text has other blanks, and may be shorter; a token of blanks ends where the one before it does
        ends = [match.end() for match in re.finditer(r"\S", verdict.text)]
        prefixes = {ends[num - 1]: probability for num, probability in reversed(beginnings) if 0 < num <= len(ends)}
        known = tuple(sorted(prefixes.items()))
        return replace(verdict, confidence=beginnings[-1][1], is_cut=ending.is_cut, prefixes=known)

    def is_faulty(self, draft: Draft) -> bool:
        """The user would not see the draft, because it does not fit where it stands: another draft may fit."""
        verdict = self.verdict(draft) if self._judge else None
        return isinstance(verdict, Rejection) and verdict.reason in MISFITS

    def confidence(self, draft: Draft) -> float:
        """Estimated probability from 0 to 1 that the draft's first line with text is right."""
        return self._beginnings(draft)[-1][1]

    def _beginnings(self, draft: Draft) -> list[tuple[int, float]]:
        """The first line with text after each token: its characters without blanks, and the probability of all."""
        decoder = getincrementaldecoder("utf-8")("ignore")
        num_hidden = len(self.layout.removed)  # bytes before the cursor
        beginnings = [(0, 1.0)]
        probabilities = np.cumprod(np.clip(draft.confidence, 1e-9, 1.0), dtype=np.float64).tolist()
        for number, probability in enumerate(probabilities):
            piece = self.stop.decode(draft.ids[number : number + 1])
            text = decoder.decode(piece[num_hidden:])
            num_hidden = max(0, num_hidden - len(piece))
            num_visible = beginnings[-1][0]
            beginnings.append((num_visible + len("".join(text.split())), probability))
            if "\n" in (text if num_visible else text.lstrip()):
                break
        return beginnings

    def result(self, best: Draft, candidates: tuple[Candidate, ...], rejections: tuple[Rejection, ...]) -> FillResult:
        """The result of a fill or an answer, and the costs of the request so far."""
        num_prompt = len(self.layout.prompt_ids)
        costs = self.costs
        is_late = costs.num_passes >= self.limits.early_stop_passes or self.limits.is_over()
        interruption = Ending.DEADLINE if is_late else Ending.CONTEXT
        return FillResult(
            model=self.spec.name,
            candidates=candidates,
            rejections=rejections,
            canvas_length=self.limits.canvas_length,
            steps=costs.num_passes,
            output_tokens=len(best.confidence),
            prompt_tokens=num_prompt,
            cached_tokens=max(0, num_prompt - costs.num_prefilled),
            timings=costs.timings(),
            decoder=self.decoder,
            slot=self.slot,
            ending=self.stop.ending(best, costs.num_passes) or interruption,
            num_blocks=costs.num_blocks,
            canvas_tokens=costs.canvas_tokens,
            slot_tokens=len(self._held),
            step_limit=self.sampling.max_denoising_steps if self.limits.canvas_length else self.limits.max_tokens,
        )


_DECODERS: dict[DecoderName, type[Decoder]] = {
    DecoderName.DIFFUSION: DiffusionDecoder,
    DecoderName.AUTOREGRESSIVE: AutoregressiveDecoder,
    DecoderName.SPECULATIVE: SpeculativeDecoder,
    DecoderName.PROMPT_LOOKUP: PromptLookupDecoder,
    DecoderName.INFILL: InfillDecoder,
}
