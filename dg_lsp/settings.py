"""The settings tree: the default is in the field, and the sentence below the field describes it.

Sources, later ones win: the defaults, the user's `dg-lsp.toml`, the workspace's, LSP `initializationOptions`, the
command line. Keys are spelled the same everywhere. A bad key of a file or of a client is reported and ignored, and all
other keys count.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import cattrs
from attrs import field, validators

from dg_lsp.errors import SettingsError
from dg_lsp.gitignore import is_pattern
from dg_lsp.sampler_options import (
    KIND_WORDS,
    NO_OPTIONS,
    PROMPT_ATTENTIONS,
    SAMPLER_KEY,
    SamplerOptions,
    Samplers,
    parse_samplers,
)

DECODERS = ("auto", "diffusion", "autoregressive", "speculative", "prompt-lookup", "infill")
FIMS = (
    *("suffix", "none", "qwen", "codegemma", "granite", "granite-code", "mellum", "starcoder2", "starcoder"),
    *("santacoder", "deepseek", "codestral", "codellama", "zeta", "seed-coder"),
)
"""The families of `dg_lsp/canvas/fim_families.toml`, except that of dg-lsp's own models."""

MAX_NAMED = 8
"""Unknown keys that one message names."""

MAX_SECONDS, MAX_MS = 1e6, 1e9
"""Longest times, eleven days: the system cannot wait for all longer ones."""

_INTERNAL = {"internal": True}


@attrs.frozen
class CompletionSettings:
    """Cost and length of a completion.

    The fields marked as internal are not settings: benchmarks and tests vary them.
    """

    trigger: str = field(default="auto", validator=validators.in_(("auto", "manual")))
    """`auto` completes while you type, `manual` only when you request it."""
    lines: str = field(default="auto", validator=validators.in_(("auto", "single")))
    """`auto` completes a whole block on an empty line, `single` one line at most."""
    debounce_ms: float = field(default=0.0, validator=[validators.ge(0), validators.le(MAX_MS)])
    """Milliseconds without a key before an automatic completion starts, added to the editor's own pause."""
    deadline_ms: float = field(default=1000.0, validator=[validators.gt(0), validators.le(MAX_MS)])
    """Milliseconds after which the stable part of a completion is shown, or nothing."""
    early_stop_ms: float = field(default=150.0, validator=[validators.ge(0), validators.le(MAX_MS)])
    """Milliseconds after which whole lines are shown without waiting for the rest of the completion; 0 always waits."""
    max_tokens: int = field(default=64, validator=validators.ge(1))
    """Maximum length; longer than one canvas is continued canvas by canvas."""
    min_confidence: float = field(default=0.08, validator=[validators.ge(0), validators.le(1)])
    """Hide automatic suggestions and rewrites whose estimated probability of being right is lower; 0 hides none."""
    decoder: str = field(default="auto", validator=validators.in_(DECODERS))
    """`diffusion`, `autoregressive`, `speculative`, `prompt-lookup` or `infill`; `auto` selects by measured costs."""
    speculate: bool = True
    """Compute in advance: the completion after an accepted one, and the prompt of an opened file or resting cursor."""
    prompt_format: str = field(default="", metadata=_INTERNAL)
    """`fim`, `infill`, `prefix` or `instruct`; empty: the model's own."""
    order: str = field(default="", metadata=_INTERNAL)
    """Mask to replace when none is confident: `leftmost` or `confident`; empty: the model's own."""
    repetition: bool = field(default=True, metadata=_INTERNAL)
    """Use confident n-grams of the buffer, for models that profit from them."""
    type_through: bool = field(default=True, metadata=_INTERNAL)
    """Keep the rest of a suggestion while the user types its beginning."""
    check_syntax: bool = field(default=True, metadata=_INTERNAL)
    """Refuse completions that add a syntax error."""

    @property
    def max_lines(self) -> int | None:
        """Of a completion at the cursor; None: what the position allows."""
        return 1 if self.lines == "single" else None


CONTEXT_SOURCES = ("imports", "open-files", "edits")


@attrs.frozen
class ContextSettings:
    """Code of other files in the prompt. Excluded files are never part of it."""

    enabled: str = field(default="auto", validator=validators.in_(("auto", "always", "never")))
    """Add code of other files to the prompt: `always`, `never`, or for models trained on several files (`auto`)."""
    sources: tuple[str, ...] = field(
        default=CONTEXT_SOURCES, validator=validators.deep_iterable(validators.in_(CONTEXT_SOURCES))
    )
    """What is added: signatures of imported definitions, similar code in open files, recent edits."""


def _patterns(_instance: object, attribute: "attrs.Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    if any(not pattern or "\n" in pattern or not is_pattern(pattern) for pattern in value):
        raise ValueError(f"'{attribute.name}' must be a list of lines of a .gitignore file")


@attrs.frozen
class PrivacySettings:
    """Files that are never sent to a model, folders that the user trusts, and the audit log."""

    exclude_secrets: bool = True
    """Exclude files that usually contain keys or passwords: `.env`, `*.pem`, `id_rsa` and similar ones."""
    exclude_patterns: tuple[str, ...] = field(default=(), validator=_patterns)
    """More files to exclude, as lines of a `.gitignore` in each workspace folder and repository; `!` includes again."""
    exclude_gitignored: bool = False
    """Exclude the files that git ignores, whatever folder of the repository is open."""
    exclude_languages: tuple[str, ...] = ()
    """LSP language ids without completions, such as `markdown`."""
    exclude_comments: bool = False
    """No automatic completions inside comments, in languages with a grammar; requested ones still come."""
    exclude_strings: bool = False
    """No automatic completions inside strings and docstrings; code in a string, as in an f-string, is completed."""
    trusted_folders: tuple[str, ...] = ()
    """Folders whose `dg-lsp.toml` may also choose models and exclude less, with all folders in them."""
    audit_log: str = ""
    """File that receives one line of numbers for each request, never text; empty: no log."""
    is_incomplete: bool = field(default=False, metadata=_INTERNAL)
    """A settings file, or a key of its table `privacy`, was ignored, so no file may be sent to a remote server."""


@attrs.frozen
class ModelSettings:
    """The model and its runtime."""

    name: str = "auto"
    """A model's name or path, or `auto`, `auto-diffusion`: the best one here; of the bundled ones `dg-base` if fast."""
    threads: int = field(default=0, validator=validators.ge(0))
    """CPU threads; 0 measures several numbers at load and uses the fastest."""
    gpu_layers: int = field(default=-1, validator=validators.ge(-1))
    """Layers on the GPU, if there is one; -1: all, 0: none."""
    context_length: int = field(default=0, validator=validators.ge(0))
    """Tokens that all cached prompts may have together, in memory from the load on; 0 begins small and grows."""
    num_slots: int = field(default=4, validator=[validators.ge(1), validators.le(16)])
    """Number of documents whose prompts stay in memory, so that a key costs only what is new."""
    device: str = field(
        default="auto",
        validator=validators.matches_re(r"auto|cpu|(gpu|cuda)(:\d{1,3}(,\d{1,3})*)?"),
        metadata={"allowed": "auto, cpu, gpu, or numbers of GPUs such as gpu:1 or gpu:0,1"},
    )
    """`cpu`, `gpu` (there must be one), `gpu:1`, or `gpu:0,1` to split layers; `auto`: one GPU if the model fits."""
    idle_seconds: float = field(default=0.0, validator=[validators.ge(0), validators.le(MAX_SECONDS)])
    """Seconds without a request after which the model is unloaded until the next one; 0 never unloads it."""
    prompt_attention: str = field(default="auto", validator=validators.in_(PROMPT_ATTENTIONS), metadata=_INTERNAL)
    """Bidirectional models read the prompt each step (`exact`, `auto`), once (`per_request`) or causally (`causal`).

    From the model's table in `sampler`, when the model is loaded.
    """
    sampler: Samplers = field(default=(), metadata=_INTERNAL)
    """Options of models by their names, the tables `model.sampler.NAME` of the user's file; no editor sets them."""

    def sampler_of(self, name: str) -> SamplerOptions:
        """The options of a model."""
        return dict(self.sampler).get(name, NO_OPTIONS)


def _one_model(_instance: object, _attribute: "attrs.Attribute[str]", value: str) -> None:
    if value in ("auto", "auto-diffusion"):
        raise ValueError(f"rewrite.model must name one model: {value} selects models for completions")


@attrs.frozen
class RewriteSettings:
    """Rewrites of a selection."""

    model: str = field(default="", validator=_one_model)
    """Model of rewrites and chats, loaded beside that of completions; empty: the same one."""
    deadline_ms: float = field(default=60_000.0, validator=[validators.gt(0), validators.le(MAX_MS)])
    """Milliseconds after which a rewrite is cancelled."""
    strength: float = field(default=0.6, validator=[validators.gt(0), validators.le(1)])
    """Fraction of the selection's tokens that *Regenerate* replaces; 1 keeps none."""
    preview: bool = True
    """Confirm changes in the editor's preview, if it has one."""


def _json_object(_instance: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    try:
        is_object = not value or isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError(f"'{attribute.name}' must be a JSON object, or empty")


def _variable(_instance: object, _attribute: "attrs.Attribute[str]", value: str) -> None:
    if not re.fullmatch(r"\w*", value, re.ASCII):  # the value may be the key itself: the message does not have it
        raise ValueError("remote.key_source must be the name of an environment variable, or keyring")


@attrs.frozen
class RemoteSettings:
    """A server that runs the model instead of this process."""

    url: str = field(
        default="",
        validator=validators.matches_re(r"(https?://[^\s/@?#]+(/[^\s@?#]*)?)?"),
        metadata={"allowed": "an address such as http://127.0.0.1:8000, without @, ? and #"},
    )
    """Base address of the server, such as `http://127.0.0.1:8000`; empty: the model runs in this process."""
    allow_http: bool = False
    """Use an `http` address of another machine too, although others on the way can read code and key."""
    api: str = field(default="completions", validator=validators.in_(("completions", "infill", "chat")))
    """Requests that the server answers: `/v1/completions`, `/infill` or `/v1/chat/completions`."""
    model: str = ""
    """The model's name on the server; empty: the server's default."""
    fim: str = field(default="suffix", validator=validators.in_(FIMS))
    """How `completions` send the text after the cursor: in a `suffix` field, with a family's FIM tokens, or `none`."""
    max_prompt_tokens: int = field(default=2048, validator=validators.ge(64))
    """Approximate number of tokens of the file that are sent."""
    extra: str = field(default="", validator=_json_object)
    """A JSON object whose fields are added to every request."""
    key_source: str = field(default="DG_LSP_REMOTE_KEY", validator=_variable)
    """Environment variable with the API key, or `keyring`: the system's, service `dg-lsp`, user the server's host."""
    ca_file: str = ""
    """PEM file with certificates to trust instead of the system's."""


@attrs.frozen
class DaemonSettings:
    """One model for all editors."""

    use: str = field(default="auto", validator=validators.in_(("auto", "start", "never")))
    """Whether `dg-lsp lsp` uses a daemon: `auto` if one runs, `start` starts one, `never`."""


@attrs.frozen
class Settings:
    """The whole tree."""

    completion: CompletionSettings = CompletionSettings()
    context: ContextSettings = ContextSettings()
    privacy: PrivacySettings = PrivacySettings()
    model: ModelSettings = ModelSettings()
    remote: RemoteSettings = RemoteSettings()
    rewrite: RewriteSettings = RewriteSettings()
    daemon: DaemonSettings = DaemonSettings()

    @property
    def is_remote(self) -> bool:
        """A server runs the model."""
        return bool(self.remote.url)

    @property
    def for_rewrites(self) -> "Settings":
        """The same settings with the model of rewrites and chats as the model, if there is one.

        With a remote server it is another model of that server.
        """
        if not (name := self.rewrite.model):
            return self
        if self.is_remote:
            return attrs.evolve(self, remote=attrs.evolve(self.remote, model=name))
        return attrs.evolve(self, model=attrs.evolve(self.model, name=name))

    @property
    def model_key(self) -> tuple[ModelSettings, RemoteSettings]:
        """The settings that select and load a model; sessions of one model can differ in all others."""
        return self.model, self.remote


def leaves(kind: type = Settings, prefix: str = "") -> Iterator[tuple[str, "attrs.Attribute[Any]", type]]:
    """Every setting: its dotted key, its field, and the class of the field; without internal fields."""
    for setting in attrs.fields(kind):
        if setting.type is not None and attrs.has(setting.type):
            yield from leaves(setting.type, f"{prefix}{setting.name}.")
        elif not setting.metadata.get("internal"):
            yield f"{prefix}{setting.name}", setting, kind


KEYS = tuple(key for key, *_ in leaves())
"""The dotted keys of all settings."""
_GROUPS = tuple(group.name for group in attrs.fields(Settings))
_MOVED = {
    "fill": "use completion",
    "exclude": "use privacy.exclude_*",
    "runtime": "use model",
    "audit": "use privacy.audit_log",
    "remote.key_variable": "use remote.key_source",
    "remote.keyring": 'use remote.key_source = "keyring"',
    "daemon.http": "use dg-lsp serve",
    "model.prompt_attention": f"set it for each model, in the table [{SAMPLER_KEY}.NAME]",
}
"""What replaces the settings of earlier versions that have no successor of a similar name."""


def settings_tree(settings: Settings) -> dict[str, Any]:
    """The settings as nested mappings, as `parse_settings` reads them; without internal fields but the samplers."""
    tree: dict[str, Any] = _CONVERTER.unstructure(settings)
    known = (*KEYS, SAMPLER_KEY) if settings.model.sampler else KEYS
    return {
        group: {key: value for key, value in table.items() if f"{group}.{key}" in known}
        for group, table in tree.items()
    }


_CONVERTER = cattrs.Converter(forbid_extra_keys=True, prefer_attrib_converters=True)


def _strict(value: Any, kind: type) -> Any:
    """Refuses the conversions that cattrs would make: `"8"` to 8, and 1 to True."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"must be {KIND_WORDS[kind]}, not {value!r:.80}")
    return value


def _strings(value: Any, _kind: type) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"must be a list of texts, not {value!r:.80}")
    return tuple(value)


_CONVERTER.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _strings)
_CONVERTER.register_structure_hook_func(lambda kind: kind == Samplers, lambda value, _kind: parse_samplers(value))
_CONVERTER.register_unstructure_hook_func(
    lambda kind: kind == Samplers, lambda samplers: {name: options.values for name, options in samplers}
)
for _kind in (int, float, bool, str):
    _CONVERTER.register_structure_hook(_kind, _strict)


def parse_settings(tree: Mapping[str, Any], over: Settings | None = None) -> Settings:
    """Settings from a mapping, such as a TOML file; absent keys keep their value in `over`.

    Raises:
        SettingsError: unknown keys, wrong types or values out of range; the message names all of them in one line.
    """
    if unknown := unknown_keys(tree):
        rest = [f"{len(unknown) - MAX_NAMED} more"] if len(unknown) > MAX_NAMED else []
        raise SettingsError("; ".join([*map(_unknown_setting, unknown[:MAX_NAMED]), *rest]))
    base = _CONVERTER.unstructure(over or Settings())
    try:
        return _CONVERTER.structure(_merge(base, tree), Settings)
    except (cattrs.BaseValidationError, ValueError, TypeError, AttributeError) as error:
        reasons = cattrs.transform_error(error, path="settings", format_exception=_reason)
        raise SettingsError("; ".join(map(_sentence, reasons))) from error


def valid_settings(tree: Mapping[str, Any], over: Settings) -> tuple[Settings, list[str], dict[str, str]]:
    """`over` with the valid keys of a mapping applied, these keys, and the errors of the other ones by key.

    Of many unknown keys the first ones have a message, because the search for a similar key takes time.
    """
    keys, problems = list[str](), dict.fromkeys(unknown_keys(tree)[MAX_NAMED:], "")
    for key, part in _parts(tree).items():
        if key in problems:
            continue
        try:
            over = parse_settings(part, over)
        except SettingsError as error:
            problems[key] = str(error)
        else:
            keys.append(key)
    return over, keys, problems


def unknown_keys(tree: Mapping[str, Any]) -> list[str]:
    """The dotted keys of a tree that are no settings."""
    return [key for key in _parts(tree) if key not in (*KEYS, SAMPLER_KEY, *_GROUPS)]


def _parts(tree: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A tree for each dotted key of a tree; a group that is unknown or no table counts as one key."""
    parts: dict[str, dict[str, Any]] = {}
    for group, value in tree.items():
        if isinstance(value, Mapping) and group in _GROUPS:
            parts |= {f"{group}.{key}": {group: {key: setting}} for key, setting in value.items()}
        else:
            parts[group] = {group: value}
    return parts


def _unknown_setting(key: str) -> str:
    """The message for an unknown key, with what replaces it or the nearest known one."""
    if key in _MOVED:
        return f"unknown setting {key}: {_MOVED[key]}"
    same_name = [known for known in KEYS if known.endswith(f".{key.rpartition('.')[2]}")]
    near = same_name or difflib.get_close_matches(key, [*KEYS, *_GROUPS], 1)
    shown = key if key.isprintable() else ascii(key)  # a hostile file could control the terminal
    return f"unknown setting {shown:.120}" + "".join(f" (did you mean {known}?)" for known in near[:1])


def _reason(error: BaseException, kind: type | None) -> str:
    """The message of a validator or of a conversion."""
    match error.args:
        case (str(), attrs.Attribute(name=name), tuple(allowed), value):
            return f"'{name}' must be one of {', '.join(allowed)}, not {value!r:.80}"
        case (str(), attrs.Attribute(name=name, metadata={"allowed": allowed}), *_):
            return f"'{name}' must be {allowed}"
        case (str(message), *_) if isinstance(error, ValueError):
            return message
    return "must be a table" if attrs.has(kind or type) else cattrs.v.format_exception(error, kind)


def _sentence(reason: str) -> str:
    """A message of cattrs with the whole key, which it appends, or that of the group where the message has the name."""
    message, _, path = reason.rpartition(" @ settings")
    key = path.removeprefix(".")
    if message.startswith("'"):
        name, _, rest = message[1:].partition("'")
        return f"{key}.{name}{rest}"
    return f"{key} {message}" if message.startswith("must be") else message


def _merge(base: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in tree.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
