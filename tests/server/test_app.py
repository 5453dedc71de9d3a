"""Settings of a session: initializationOptions and the file of the workspace."""

from pathlib import Path

import pytest

from dg_lsp.server.app import parse_options
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings
from dg_lsp.settings_files import user_file

BASE = Settings(model=ModelSettings(name="other"), completion=CompletionSettings(max_tokens=8))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({"completion": None}, "completion is not used (", id="null for a group"),
        pytest.param({"model": {"name": {}}}, "model.name is not used (", id="an empty group for a value"),
        pytest.param({"remote": {"key_source": "HOME"}}, "remote.key_source is not used", id="a secret's name"),
        pytest.param({"privacy": {"trusted_folders": ["/"]}}, "privacy.trusted_folders is not used", id="trust"),
        pytest.param({"model": {"sampler": {"a": {"t_max": 1}}}}, "model.sampler is not used", id="a sampler"),
        pytest.param({"daemon": {"use": "start"}}, "daemon.use is not used", id="a daemon, too late"),
        pytest.param([], "must be an object", id="a list"),
    ],
)
def test_an_invalid_option_is_reported_and_not_used(options, named):
    settings, [error] = parse_options(options, BASE)
    assert settings == BASE
    assert named in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("model", "expected"),
    [("models/mine.gguf", "/project/models/mine.gguf"), ("/models/mine.gguf", "/models/mine.gguf"), ("auto", "auto")],
)
def test_a_relative_model_path_is_relative_to_the_workspace(model, expected):
    assert parse_options({"model": {"name": model}}, BASE, Path("/project"))[0].model.name == expected
    for folder in (Path("/project"), None):  # a folder must not choose certificates
        settings, _ = parse_options({"remote": {"ca_file": "ca.pem"}}, BASE, folder)
        assert settings.remote.ca_file == str(user_file().parent / "ca.pem")


def test_a_null_leaves_its_setting_to_the_files():
    changed, _ = parse_options({"model": {"name": "third"}, "completion": {"max_tokens": 9}}, BASE)
    settings, errors = parse_options({"model": {"name": None}}, changed, files=BASE)
    assert (settings.model.name, settings.completion.max_tokens, errors) == ("other", 9, ())


def test_no_remote_server_is_used_until_the_privacy_settings_of_the_editor_are_right():
    settings, _ = parse_options({"privacy": {"exclude_patterns": "*.sql"}}, BASE)
    assert settings.privacy.is_incomplete
    settings, _ = parse_options({"completion": {"max_tokens": 9}}, settings, files=BASE)
    assert settings.privacy.is_incomplete
    settings, _ = parse_options({"privacy": {"exclude_patterns": ["*.sql"]}}, settings, files=BASE)
    assert not settings.privacy.is_incomplete
