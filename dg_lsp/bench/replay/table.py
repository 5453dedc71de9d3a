"""An account as Markdown, for a terminal and for the log."""

from collections.abc import Iterator

from dg_lsp.bench.replay.account import Account
from dg_lsp.bench.replay.run import Buffer, Replay
from dg_lsp.metrics.summary import Quantiles

_AROUND = {
    Buffer.ONWARDS: "what comes before in the file is there, nothing after the cursor",
    Buffer.REGION: "the rest of the file stands around the lines that are typed",
    Buffer.BODIES: "the rest of the file stands around each function body that is typed",
}


def setting_lines(replay: Replay, buffer: Buffer) -> Iterator[str]:
    """What was assumed, one sentence a line."""
    typist, editor = replay.typist, replay.editor
    means = (typist.in_word_ms, typist.word_start_ms, typist.line_start_ms)
    in_word, word_start, line_start = (mean / typist.speed for mean in means)
    yield f"buffer: {_AROUND[buffer]}"
    yield (
        f"typist: log-normal, mean {in_word:.0f} ms in a word, {word_start:.0f} before one, {line_start:.0f} before a "
        f"line, spread {typist.spread:g}; {typist.reaction_ms:.0f} ms to accept; seed {replay.seed}"
    )
    yield (
        f"editor: asks {editor.debounce_ms:.0f} ms after a key, which no time below counts; "
        f"at a key that goes on with an item: {editor.type_through}"
    )


def account_table(account: Account) -> Iterator[str]:
    """Markdown, one row per number."""
    yield "| what | value |"
    yield "|---|---|"
    for what, value in account_rows(account):
        yield f"| {what} | {value} |"


def account_rows(account: Account) -> tuple[tuple[str, str], ...]:
    """Every number with its name, as a person reads it."""
    summary = account.summary
    accepted = ", ".join(f"{num} {level}" for level, num in account.num_accepted.items())
    useful_by = ", ".join(f"{share:.1%} by {cut}" for cut, share in summary.useful_by.items())
    return (
        ("requests", f"{summary.num}, {account.num_cancelled} of them cancelled by the next key"),
        ("TTFUE of hits, ms", _quantiles(summary.ttfue_ms)),
        ("useful by, ms", useful_by),
        ("misses", f"{summary.miss_rate:.1%}, cancelled requests included"),
        ("answered after, ms", _quantiles(account.answer_ms)),
        ("show rate", f"{summary.show_rate:.1%} of the requests; {account.num_displayed} items on the screen"),
        ("acceptance rate", f"{account.acceptance_rate:.1%} of the items on the screen ({accepted})"),
        ("typed through", f"{account.num_typed_through} items"),
        ("reversals between requests", f"{account.reversal_rate:.1%} of {account.num_confirmable} answers"),
        (
            "quiet rate",
            f"{account.quiet_rate:.1%} of {account.num_finished_lines} answers at the end of a finished line",
        ),
        ("keystrokes saved", f"{account.keystrokes_saved:.1%} of {account.keys_by_hand}"),
        ("characters accepted", f"{account.chars_accepted_share:.1%} of {account.chars}"),
        ("model time, ms", f"{account.model_ms:.0f}"),
        ("wasted model time", f"{account.wasted_share:.1%}: the item was not accepted, or there was none"),
        ("model ms per useful edit", _number(summary.model_ms_per_useful)),
    )


def _quantiles(times: Quantiles) -> str:
    return f"p50 {_number(times.p50)}, p90 {_number(times.p90)}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f}"
