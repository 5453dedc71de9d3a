"""The settings tree: the default is in the field, and the sentence below the field describes it.

Sources, later ones win: the defaults, the user's `dg-lsp.toml`, the workspace's, LSP `initializationOptions`, the
command line. Keys are spelled the same everywhere. A bad key of a file or of a client is reported and ignored, and all
other keys count.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

import attrs
from attrs import field, validators

from dg_lsp.errors import SettingsError, escaped
from dg_lsp.gitignore import is_pattern

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
    """Cost and length of a completion."""

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
    """Hide automatic suggestions and rewrites that are less probable, but for a probable beginning; 0 hides none."""
    decoder: str = field(default="auto", validator=validators.in_(DECODERS))
    """`diffusion`, `autoregressive`, `speculative`, `prompt-lookup` or `infill`; `auto` selects by measured costs."""
    speculate: bool = True
    """Compute in advance: the completion after an accepted one, and the prompt of an opened file or resting cursor."""


@attrs.frozen
class ContextSettings:
    """Code of other places in the prompt. Excluded files are never part of it."""

    enabled: str = field(default="auto", validator=validators.in_(("auto", "always", "never")))
    """Code of open files and the rest of the file in prompts: `always`, `never`, or for models that use it (`auto`)."""


def _patterns(_instance: object, _attribute: "attrs.Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    if any(not pattern or "\n" in pattern or not is_pattern(pattern) for pattern in value):
        raise ValueError("must be a list of lines of a .gitignore file")


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
    trusted_folders: tuple[str, ...] = ()
    """Folders whose `dg-lsp.toml` may also choose models and exclude less, with all folders in them."""
    audit_log: str = ""
    """File that receives one line of numbers for each request, never text; empty: no log."""
    is_incomplete: bool = field(default=False, metadata=_INTERNAL)
    """A settings file or a key of `privacy` was ignored, so no file may be sent to a remote server."""


PROMPT_ATTENTIONS = ("auto", "exact", "per_request")


def _bounded(least: float, most: float) -> Any:
    """A number that may be absent; a model may allow less."""
    validator = validators.optional([validators.ge(least), validators.le(most)])
    return field(default=None, validator=validator, metadata={"bounds": (least, most)})


@attrs.frozen(kw_only=True)
class SamplerOptions:
    """How the model denoises, in place of its own values; None keeps them. See `UniformSampling` and `MaskSampling`."""

    canvas_length: int | None = _bounded(1, 65_536)
    max_denoising_steps: int | None = _bounded(1, 1024)
    entropy_bound: float | None = _bounded(0.0, 1000.0)  # uniform noise only, as temperatures and stability
    t_max: float | None = _bounded(0.01, 10.0)
    t_min: float | None = _bounded(0.01, 10.0)
    stability_threshold: int | None = _bounded(0, 1024)
    stop_interval: int | None = _bounded(1, 16)
    confidence_threshold: float | None = _bounded(0.0, 100.0)  # a probability for mask noise, nats for uniform noise
    top_k: int | None = _bounded(0, 1_048_576)
    """Most probable tokens that a token is drawn from; 0: all. Only uniform noise draws."""
    top_k_start: int | None = _bounded(0, 1_048_576)
    top_k_end: int | None = _bounded(0, 1_048_576)
    top_k_tail_correction: bool | None = None
    thinking: bool | None = None
    """The model thinks before it answers a conversation."""
    prompt_attention: str | None = field(default=None, validator=validators.optional(validators.in_(PROMPT_ATTENTIONS)))
    """How a bidirectional model reads the prompt. Only of a model, not of a request."""

    @property
    def values(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return attrs.asdict(self, filter=lambda _, value: value is not None)


NO_OPTIONS = SamplerOptions()
_OPTION_TYPES = {option.name: get_args(option.type)[0] for option in attrs.fields(SamplerOptions)}
SAMPLER_BOUNDS: dict[str, tuple[float, float]] = {
    option.name: option.metadata["bounds"] for option in attrs.fields(SamplerOptions) if option.metadata
}
"""Least and greatest value of each number in `SamplerOptions`."""
SAMPLER_NAMES = tuple(name for name in _OPTION_TYPES if name != "prompt_attention")
"""Options of a request."""
SAMPLER_KEY = "model.sampler"
"""The table of the user's settings file that has a table of options for each model."""
Samplers = tuple[tuple[str, SamplerOptions], ...]
"""Options of models by their names."""


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
    """Bidirectional models compute the prompt in each step (`exact`, `auto`) or once for a request (`per_request`).

    From the model's table in `sampler`, when the model is loaded.
    """
    sampler: Samplers = field(default=(), metadata=_INTERNAL)
    """Options of models by their names, the tables `model.sampler.NAME` of the user's file; no editor sets them."""

    def sampler_of(self, name: str) -> SamplerOptions:
        """The options of a model, with the `prompt_attention` of these settings if they have one."""
        options = dict(self.sampler).get(name, NO_OPTIONS)
        if self.prompt_attention == "auto":
            return options
        return attrs.evolve(options, prompt_attention=self.prompt_attention)


@attrs.frozen
class RewriteSettings:
    """Rewrites of a selection."""

    model: str = field(
        default="",
        validator=validators.matches_re(r"(?!auto(-diffusion)?$).*", re.DOTALL),
        metadata={"allowed": "the name or the path of one model, because auto selects models for completions"},
    )
    """Model of rewrites and chats, loaded beside that of completions; empty: the same one."""
    deadline_ms: float = field(default=60_000.0, validator=[validators.gt(0), validators.le(MAX_MS)])
    """Milliseconds after which a rewrite is cancelled."""
    strength: float = field(default=0.6, validator=[validators.gt(0), validators.le(1)])
    """Fraction of the selection's tokens that *Regenerate* replaces; 1 keeps none."""
    preview: bool = True
    """Confirm changes in the editor's preview, if it has one."""


def _json_object(_instance: object, _attribute: "attrs.Attribute[str]", value: str) -> None:
    try:
        is_object = not value or isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError("must be a JSON object, or empty")


def _has_port(_instance: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    try:
        urlsplit(value).port  # noqa: B018
    except ValueError as error:  # it is no number up to 65,535, or a bracket before it is not closed
        raise ValueError("no address", attribute) from error


@attrs.frozen
class RemoteSettings:
    """A server that runs the model instead of this process."""

    url: str = field(
        default="",
        validator=[validators.matches_re(r"(https?://[^\s/@?#]+(/[^\s@?#]*)?)?"), _has_port],
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
    key_source: str = field(
        default="DG_LSP_REMOTE_KEY",
        validator=validators.matches_re(r"\w*", re.ASCII),
        metadata={"allowed": "the name of an environment variable"},
    )
    """Environment variable with the API key."""
    ca_file: str = ""
    """PEM file with certificates to trust instead of the system's."""


@attrs.frozen
class NextEditSettings:
    """Edits that follow from the last ones, elsewhere in the file."""

    enabled: bool = True
    """Propose edits that repeat or continue your last ones; never in an excluded file."""
    trigger: str = field(default="pause", validator=validators.in_(("pause", "request")))
    """`pause` proposes after a pause in typing, an accepted suggestion or a saved file, `request` only on request."""


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
    next_edit: NextEditSettings = NextEditSettings()
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
        return with_setting(self, "remote.model" if self.is_remote else "model.name", name)

    @property
    def model_key(self) -> tuple[ModelSettings, RemoteSettings, bool]:
        """The settings that select and load a model; sessions of one model can differ in all others."""
        return self.model, self.remote, self.is_remote and self.privacy.is_incomplete  # then no server is used


def leaves() -> Iterator[tuple[str, "attrs.Attribute[Any]", type]]:
    """Every setting: its dotted key, its field, and the class of the field; without internal fields."""
    for group, kind in get_type_hints(Settings).items():
        for setting in attrs.fields(kind):
            if not setting.metadata.get("internal"):
                yield f"{group}.{setting.name}", setting, kind


_FIELDS = {key: setting for key, setting, _ in leaves()}
KEYS = tuple(_FIELDS)
"""The dotted keys of all settings."""
_GROUPS = tuple(group.name for group in attrs.fields(Settings))
_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple[str, ...]: "a list of texts",
}


def settings_tree(settings: Settings) -> dict[str, Any]:
    """The settings as nested mappings, as `parse_settings` reads them; without internal fields but the samplers."""
    tree = attrs.asdict(settings, filter=lambda setting, _: not setting.metadata.get("internal"))
    if settings.model.sampler:
        tree["model"]["sampler"] = {name: options.values for name, options in settings.model.sampler}
    return tree


def setting_of(settings: Settings, key: str) -> Any:
    """The value of a dotted key."""
    group, _, name = key.partition(".")
    return getattr(getattr(settings, group), name)


def with_setting(settings: Settings, key: str, value: Any) -> Settings:
    """The settings with another value of a dotted key; raises ValueError for one that its validator refuses."""
    group, _, name = key.partition(".")
    return attrs.evolve(settings, **{group: attrs.evolve(getattr(settings, group), **{name: value})})


def parse_settings(tree: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Settings from a mapping, such as a TOML file; absent keys keep their value in `base`.

    Raises SettingsError: unknown keys, wrong types or values out of range; the message names them in one line.
    """
    settings, _, problems = valid_settings(tree, base or Settings())
    if problems:
        named = [problem for problem in problems.values() if problem]
        if len(named) < len(problems):
            named.append(f"{len(problems) - len(named)} more")
        raise SettingsError("; ".join(named))
    return settings


def valid_settings(
    tree: Mapping[str, Any], base: Settings, unset: Settings | None = None
) -> tuple[Settings, list[str], dict[str, str]]:
    """`base` with the valid keys of a mapping applied, these keys, and the errors of the other ones by key.

    Of many unknown keys the first ones have a message, because the search for a similar key takes time. A key that is
    null takes its value from `unset`.
    """
    keys = list[str]()
    problems = dict[str, str]()
    num_unknown = 0
    for key, value in _flat(tree).items():
        if key not in (*KEYS, SAMPLER_KEY, *_GROUPS):
            num_unknown += 1
            problems[key] = _unknown_setting(key) if num_unknown <= MAX_NAMED else ""
            continue
        given = setting_of(unset, key) if value is None and unset is not None and "." in key else value
        try:
            base = _with_parsed(base, key, given)
        except SettingsError as error:
            problems[key] = str(error)
        else:
            keys.append(key)
    return base, keys, problems


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a tree by their dotted keys; a group that is unknown or no table counts as one key."""
    values = dict[str, Any]()
    for group, table in tree.items():
        if isinstance(table, Mapping) and group in _GROUPS:
            values |= {f"{group}.{name}": value for name, value in table.items()}
        else:
            values[group] = table
    return values


def _with_parsed(settings: Settings, key: str, value: Any) -> Settings:
    if key in _GROUPS:
        raise SettingsError(f"{key} must be a table")
    if key == SAMPLER_KEY:
        return with_setting(settings, key, _parse_samplers(value))
    group, _, name = key.partition(".")
    return attrs.evolve(settings, **{group: _evolved(getattr(settings, group), name, value, _FIELDS[key].type, key)})


def _evolved(options: Any, name: str, value: Any, kind: Any, key: str) -> Any:
    """Options with another value of a field of this type; raises SettingsError, which names the key."""
    try:
        return attrs.evolve(options, **{name: _strict(kind, value)})
    except ValueError as error:
        problem = _problem(error).removeprefix(f"'{name}' ")
        raise SettingsError(f"{key} {problem}") from error


def _parse_samplers(value: Any) -> Samplers:
    if not isinstance(value, Mapping) or not all(isinstance(table, Mapping) for table in value.values()):
        raise SettingsError(f"{SAMPLER_KEY} needs a table for each model, such as [{SAMPLER_KEY}.dg-mini]")
    return tuple((name, parse_sampler(f"{SAMPLER_KEY}.{name}", table)) for name, table in value.items())


def parse_sampler(key: str, table: Mapping[str, Any]) -> SamplerOptions:
    """The options in a table that stands under `key`; raises SettingsError for an unknown name or a bad value."""
    options: SamplerOptions = NO_OPTIONS
    for name, value in table.items():
        if name not in _OPTION_TYPES:
            raise SettingsError(f"unknown setting {key}.{name:.80}: use {', '.join(_OPTION_TYPES)}")
        options = _evolved(options, name, value, _OPTION_TYPES[name], f"{key}.{name}")
    return options


def _strict(kind: Any, value: Any) -> Any:
    """The value as its setting has it: a whole number is also a number. Raises ValueError for another type."""
    if kind is float and type(value) is int:
        return float(value) if abs(value) < 1 << 1000 else math.inf
    if kind == tuple[str, ...] and isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return tuple(value)
    if type(value) is not kind:
        # `remote.extra` as a table may hold a key: the message does not have it
        raise ValueError(f"must be {_KINDS[kind]}, not {'a table' if isinstance(value, Mapping) else repr(value)[:80]}")
    return value


def _problem(error: ValueError) -> str:
    """The message of a validator."""
    match error.args:
        case (str(), attrs.Attribute(), tuple(options), value):
            return f"must be one of {', '.join(options)}, not {value!r:.80}"
        case (str(), attrs.Attribute(metadata={"allowed": allowed}), *_):
            return f"must be {allowed}"
    return str(error)


def _unknown_setting(key: str) -> str:
    """The message for an unknown key, with the nearest known one."""
    same_name = [known for known in KEYS if known.endswith(f".{key.rpartition('.')[2]}")]
    near = same_name or difflib.get_close_matches(key, [*KEYS, *_GROUPS], 1)
    return f"unknown setting {escaped(key):.120}" + "".join(f" (did you mean {known}?)" for known in near[:1])
