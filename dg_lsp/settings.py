"""One settings tree: the default stands in the field, a sentence under the field says what it does.

Sources, later ones win: the defaults here, `dg-lsp.toml` of the workspace, LSP `initializationOptions`, the command
line. Keys are written in the same spelling everywhere. A bad value is reported in one message, and the default is
used; nothing else is lost.
"""

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import attrs
import cattrs
from attrs import field, validators

from dg_lsp.errors import SettingsError

CACHES = ("auto", "recomputed", "once", "cached")
WHEN = ("auto", "always", "never")
DTYPES = ("auto", "float32", "bfloat16", "float8")
PROMPT_FORMATS = ("", "fim", "infill", "prefix", "instruct")
DECODERS = ("auto", "diffusion", "autoregressive", "speculative", "prompt-lookup", "infill")
BACKENDS = ("local", "remote")
APIS = ("completions", "infill", "chat")
FIMS = ("suffix", "none", "qwen", "starcoder", "codegemma", "deepseek", "codestral")


@attrs.frozen
class RuntimeSettings:
    """How the model runs."""

    threads: int = field(default=0, validator=validators.ge(0))
    """CPU threads of a step; 0 measures at load and takes the fastest."""
    gpu_layers: int = field(default=-1, validator=validators.ge(-1))
    """Layers on the GPU where there is one; -1 is all of them, 0 keeps the model on the CPU."""
    context_length: int = field(default=0, validator=validators.ge(0))
    """Tokens of the KV cache, shared by all slots and made at once; 0 begins small and grows with the prompts."""
    num_slots: int = field(default=4, validator=[validators.ge(1), validators.le(16)])
    """Prompts (documents) kept in the KV cache at a time."""
    cache: str = field(default="auto", validator=validators.in_(CACHES))
    """A prompt trained to see the canvas is `recomputed` each step (`auto`), `once` a fill, or `cached` blind to it."""
    device: str = field(default="auto", validator=validators.matches_re(r"auto|cpu|cuda(:\d{1,3})?"))
    """Where a checkpoint directory runs: `cpu`, `cuda` or `cuda:1`; `auto` takes the first GPU there is."""
    dtype: str = field(default="auto", validator=validators.in_(DTYPES))
    """Number format of a checkpoint: `float32`, `bfloat16` or `float8`; `auto` is bfloat16 on a GPU, else as stored."""
    idle_seconds: float = field(default=0.0, validator=validators.ge(0))
    """Seconds without a request after which the model is taken out of memory, until the next one; 0 keeps it."""
    compile: bool = False
    """Let torch compile a checkpoint's step: minutes for each canvas length, then fewer kernels."""


@attrs.frozen
class FillSettings:
    """What a fill may cost and how long it may get."""

    deadline_ms: float = field(default=1000.0, validator=validators.gt(0))
    """Milliseconds after which what is stable so far is shown, or nothing."""
    early_stop_ms: float = field(default=150.0, validator=validators.ge(0))
    """Milliseconds after which the whole lines that are stable are enough; 0 waits for all of the fill."""
    decoder: str = field(default="auto", validator=validators.in_(DECODERS))
    """How a fill is decoded: `auto`, `diffusion`, `autoregressive`, `speculative`, `prompt-lookup` or `infill`."""
    prompt_format: str = field(default="", validator=validators.in_(PROMPT_FORMATS))
    """How the place is put to the model: `fim`, `infill`, `prefix` or `instruct`; empty takes the model's own."""
    canvas_length: int = field(default=0, validator=validators.ge(0))
    """Tokens denoised at once; 0 takes the model's shortest that holds a line."""
    max_tokens: int = field(default=64, validator=validators.ge(1))
    """Longest fill; a longer one is continued canvas by canvas up to here."""
    confidence_threshold: float = field(default=0.0, validator=[validators.ge(0), validators.le(1)])
    """Probability from which a token is accepted without being forced; 0 takes the model's own value."""
    order: str = field(default="", validator=validators.in_(("", "leftmost", "confident")))
    """Which mask is forced when none is confident: `leftmost` or `confident`; empty takes the model's own."""
    echo: bool = True
    """Take what always followed the same tokens before in the buffer; only for models that ask for it."""
    type_through: bool = True
    """Give the rest of a fill again, without the model, while the user types what it says."""
    speculate: bool = True
    """Make the fill that follows an accepted one while it is still looked at; not on a battery."""
    min_confidence: float = field(default=0.05, validator=[validators.ge(0), validators.le(1)])
    """Probability of being right under which nothing is shown unasked; 0 shows everything."""
    check_syntax: bool = True
    """Refuse a fill that adds a syntax error where there was none."""


@attrs.frozen
class ContextSettings:
    """Code that is not the file's own. Excluded files are never part of it."""

    when: str = field(default="auto", validator=validators.in_(WHEN))
    """Show code of other files: `always`, `never`, or to models that learned to read several at a time (`auto`)."""
    share: float = field(default=0.25, validator=[validators.ge(0), validators.le(0.75)])
    """Share of the prompt's tokens that it may take."""
    imports: bool = True
    """Signatures of what the file imports from the workspace; Python only."""
    open_files: bool = True
    """Places in other open files, those that are most like the code at the cursor."""
    recent_edits: bool = True
    """Places that were edited before this one."""
    diagnostics: bool = True
    """What is wrong near the cursor, where the editor tells it along with a request for code actions."""


def _patterns(_instance: object, attribute: "attrs.Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    if any(not pattern or "\n" in pattern for pattern in value):
        raise ValueError(f"{attribute.name} must be lines of a .gitignore file")


@attrs.frozen
class ExcludeSettings:
    """What is never shown to the model."""

    secrets: bool = True
    """Leave out files that usually hold keys or passwords: `.env`, `*.pem`, `id_rsa` and their like."""
    patterns: tuple[str, ...] = field(default=(), validator=_patterns)
    """More files to leave out, as in a `.gitignore`; `!` takes one back."""
    gitignored: bool = False
    """Leave out what the workspace's `.gitignore` files name."""
    languages: tuple[str, ...] = ()
    """LSP language ids for which nothing is offered, such as `markdown`."""
    max_file_chars: int = field(default=20_000_000, validator=validators.ge(1))
    """Characters above which a buffer is left alone."""


@attrs.frozen
class RewriteSettings:
    """Rewriting a selection."""

    deadline_ms: float = field(default=60_000.0, validator=validators.gt(0))
    """Milliseconds after which a rewrite is given up."""
    strength: float = field(default=0.6, validator=[validators.gt(0), validators.le(1)])
    """Share of the selection's tokens that *Regenerate* gives up; 1 starts from nothing."""
    preview: bool = True
    """Have changes confirmed in the editor's preview, where it has one."""


def _json_object(_instance: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    try:
        is_object = not value or isinstance(json.loads(value), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise ValueError(f"{attribute.name} must be a JSON object, or empty")


@attrs.frozen
class RemoteSettings:
    """A server that answers instead of a model in this process."""

    url: str = field(default="", validator=validators.matches_re(r"(https?://[^\s/@?#]+(/[^\s@?#]*)?)?"))
    """Where the server is, without the API's own path, as in `http://127.0.0.1:8000`."""
    api: str = field(default="completions", validator=validators.in_(APIS))
    """What is asked there: `/v1/completions`, `/infill` or `/v1/chat/completions`."""
    model: str = ""
    """The model's name on that server; empty leaves it to the server."""
    fim: str = field(default="suffix", validator=validators.in_(FIMS))
    """How `completions` hear what follows the cursor: a `suffix` field, a family's sentinels, or `none`."""
    max_prompt_tokens: int = field(default=2048, validator=validators.ge(64))
    """About how many tokens of the file are sent."""
    temperature: float = field(default=0.0, validator=validators.ge(0))
    """Of a single answer; several are drawn at 0.8 or more."""
    extra: str = field(default="", validator=_json_object)
    """A JSON object whose fields are added to every request."""
    key_variable: str = "DG_LSP_REMOTE_KEY"
    """Environment variable that holds the key."""
    keyring: bool = False
    """Without that variable, take the key from the system's keyring: service `dg-lsp`, user the server's host."""
    connect_ms: float = field(default=1000.0, validator=validators.gt(0))
    """Milliseconds to connect in."""
    retries: int = field(default=1, validator=[validators.ge(0), validators.le(10)])
    """How often a request is repeated, as long as few requests need that and the deadline allows it."""
    pause_ms: float = field(default=5000.0, validator=validators.ge(0))
    """Milliseconds for which a server that failed three times in a row is left alone."""
    verify_tls: bool = True
    """Check the server's certificate."""
    ca_file: str = ""
    """Certificates to trust instead of the usual ones, a PEM file."""


@attrs.frozen
class AuditSettings:
    """One line of numbers for each request, and never a text."""

    path: str = ""
    """File that the lines are written to; empty writes none."""
    max_bytes: int = field(default=10_000_000, validator=validators.ge(1024))
    """Size at which the file is put aside as `.1`, and a new one begun."""
    keep: int = field(default=3, validator=[validators.ge(0), validators.le(99)])
    """Files put aside that are kept."""


@attrs.frozen
class HttpSettings:
    """What clients of `dg-lsp serve` may ask."""

    max_body_bytes: int = field(default=8_388_608, validator=validators.ge(1024))
    """Longest body of a request; a longer one is refused."""
    max_waiting: int = field(default=32, validator=validators.ge(1))
    """Requests that may be inside at a time, the one that runs included; one more is refused, to be asked again."""
    max_per_client: int = field(default=8, validator=validators.ge(1))
    """How many of them may come from one other machine, which then hears 429."""


@attrs.frozen
class DaemonSettings:
    """One model for all editors."""

    use: str = field(default="auto", validator=validators.in_(("auto", "start", "never")))
    """Whether `dg-lsp lsp` takes its model from a daemon: `auto` where one runs, `start` starts one, `never`."""
    idle_seconds: float = field(default=600.0, validator=validators.gt(0))
    """Seconds after which a daemon closes a model, and one that an editor started leaves, when no editor needs it."""
    http: str = ""
    """`HOST:PORT` on this machine where a daemon serves HTTP too, with the model of these settings; empty: nowhere."""
    transport: str = field(default="auto", validator=validators.in_(("auto", "tcp")))
    """How editors reach it: `auto` is a Unix socket where the system has them, `tcp` a port of loopback and a token."""


@attrs.frozen
class Settings:
    """The whole tree."""

    model: str = "dg-mini"
    """A model's name, `auto`, or the path of a GGUF file or of a checkpoint's directory; `dg-mini` is bundled."""
    backend: str = field(default="local", validator=validators.in_(BACKENDS))
    """Who answers: a model in this process (`local`), or the server of `remote.url` (`remote`)."""
    audit: AuditSettings = AuditSettings()
    """The audit log."""
    daemon: DaemonSettings = DaemonSettings()
    """The model of several editors."""
    fill: FillSettings = FillSettings()
    """Automatic and invoked completions."""
    context: ContextSettings = ContextSettings()
    """Code of other files that the model is shown."""
    exclude: ExcludeSettings = ExcludeSettings()
    """Files that the model never sees."""
    http: HttpSettings = HttpSettings()
    """`dg-lsp serve`."""
    remote: RemoteSettings = RemoteSettings()
    """The server that answers where `backend` is `remote`."""
    rewrite: RewriteSettings = RewriteSettings()
    """Rewrites of a selection."""
    runtime: RuntimeSettings = RuntimeSettings()
    """The model's runtime."""


FILE_NAME = "dg-lsp.toml"
_CONVERTER = cattrs.Converter(forbid_extra_keys=True, prefer_attrib_converters=True)


def _strict(value: Any, kind: type) -> Any:
    """cattrs would turn `"8"` into 8 and 1 into True; a settings file that says so is wrong."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {value!r}")
    return value


def _strings(value: Any, _kind: type) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"expected a list of strings, got {value!r:.80}")
    return tuple(value)


_CONVERTER.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _strings)
for _kind in (int, float, bool, str):
    _CONVERTER.register_structure_hook(_kind, _strict)


def parse_settings(tree: Mapping[str, Any], over: Settings | None = None) -> Settings:
    """Settings from a mapping such as TOML gives; what is absent keeps its value in `over`.

    Raises:
        SettingsError: unknown keys, wrong types, values out of range; all of them named in one line.
    """
    base = cattrs.unstructure(over or Settings())
    try:
        return _CONVERTER.structure(_merge(base, tree), Settings)
    except (cattrs.BaseValidationError, ValueError, TypeError, AttributeError) as error:
        reasons = cattrs.transform_error(error, path="settings", format_exception=_reason)
        raise SettingsError("; ".join(reasons)) from error


def _reason(error: BaseException, kind: type | None) -> str:
    """The message of a validator, which names the field and the bound; cattrs would say "invalid value"."""
    if isinstance(error, ValueError) and error.args:
        return str(error.args[0])
    return cattrs.v.format_exception(error, kind)


def _merge(base: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in tree.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def read_settings(path: Path, over: Settings | None = None) -> Settings:
    """Settings from a TOML file.

    Raises:
        SettingsError: the file cannot be read, is no TOML or has bad values.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return parse_settings(tree, over)


def settings_file(start: Path) -> Path | None:
    """The nearest `dg-lsp.toml` in this directory or above it."""
    return next((path for path in (folder / FILE_NAME for folder in (start, *start.parents)) if _is_file(path)), None)


def file_settings(path: Path, names: Collection[str]) -> Settings:
    """The settings of a file. A relative path of a model counts from the file's directory, see `anchored`.

    Raises:
        SettingsError: the file or a value in it is bad, or it has settings that only the user may choose.
    """
    settings = read_settings(path)
    if path.parent != _home() and (settings.remote, settings.audit) != (RemoteSettings(), AuditSettings()):
        raise SettingsError(
            f"{path} says remote or audit: a folder that you open must not say where your code goes or which files are"
            f" written; put that into {FILE_NAME} of your home, into the editor's settings, or pass --remote"
        )
    return attrs.evolve(settings, model=anchored(settings.model, path.parent, names))


def anchored(model: str, folder: Path, names: Collection[str]) -> str:
    """The `model` setting; a relative path counts from `folder`, and one of the known names stays a name."""
    if model in names:
        return model
    try:
        return str(folder / Path(model).expanduser())
    except RuntimeError:  # a home that the system does not know
        return model


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # the system has no home for this user
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a directory above that may not be read
        return False
