from pathlib import Path

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.cli import loading
from dg_lsp.cli.loading import configure
from dg_lsp.cli.options import overrides
from dg_lsp.errors import BackendError, SettingsError
from dg_lsp.settings import Settings
from dg_lsp.settings_files import workspace_file

NOTHING = overrides(model=None, gpu_layers=None, threads=None)


def test_the_nearest_file_above_is_read(tmp_path, monkeypatch):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "dg-lsp.toml").write_text("[completion]\nmax_tokens = 7\n")
    monkeypatch.chdir(deep)
    assert workspace_file(Path.cwd()) == tmp_path / "dg-lsp.toml"
    assert configure(NOTHING).completion.max_tokens == 7
    (tmp_path / "a" / "dg-lsp.toml").write_text("[completion]\nmax_tokens = 8\n")
    assert configure(NOTHING).completion.max_tokens == 8


def test_a_directory_with_the_name_of_the_file_is_ignored(tmp_path):
    (tmp_path / "dg-lsp.toml").mkdir()
    assert configure(NOTHING) == Settings()


def test_an_unreadable_directory_is_ignored(monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    assert workspace_file(Path("/a/b")) is None


def test_later_sources_override_earlier_ones(tmp_path, user_settings):
    user_settings(
        "[model]\nname = 'a.gguf'\nthreads = 3\ngpu_layers = 4\n[completion]\nmax_tokens = 7\nspeculate = false\n"
    )
    (tmp_path / "dg-lsp.toml").write_text("[completion]\nmax_tokens = 8\n")
    settings = configure(overrides(model="b.gguf", gpu_layers=None, threads=0))
    assert (settings.model.name, settings.model.threads, settings.model.gpu_layers) == ("b.gguf", 0, 4)
    assert (settings.completion.max_tokens, settings.completion.speculate) == (8, False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[fill]\ndeadlin_ms = 3\n", ":1: unknown setting fill: use completion"),
        (
            "[completion]\ndeadlin_ms = 3\n",
            ":2: unknown setting completion.deadlin_ms (did you mean completion.deadline_ms?)",
        ),
    ],
)
def test_an_unknown_key_is_reported_with_its_file_and_line(tmp_path, user_settings, text, problem):
    own = user_settings(text)
    with pytest.raises(SettingsError) as error:
        configure(NOTHING)
    assert str(error.value) == f"{own}{problem}"
    own.unlink()
    (tmp_path / "dg-lsp.toml").write_text(text)
    with pytest.raises(SettingsError) as error:
        configure(NOTHING)
    assert str(error.value) == f"{tmp_path / 'dg-lsp.toml'}{problem}"


def test_a_relative_model_path_is_relative_to_the_file(user_settings):
    path = user_settings("[model]\nname = 'models/a.gguf'\n")
    assert configure(NOTHING).model.name == str(path.parent / "models/a.gguf")
    user_settings("[model]\nname = '/models/a.gguf'\n")
    assert configure(NOTHING).model.name == "/models/a.gguf"
    user_settings("[model]\nname = 'dg-mini'\n")
    assert configure(NOTHING).model.name == "dg-mini"


def test_ignored_keys_of_a_folder_are_printed_in_one_line(tmp_path, capsys):
    (tmp_path / "dg-lsp.toml").write_text("[model]\nname = 'a.gguf'\nthreads = 1\n")
    assert configure(NOTHING) == Settings()
    [line] = capsys.readouterr().err.splitlines()
    assert "ignored model.name, model.threads" in line
    assert f"add {tmp_path} to privacy.trusted_folders" in line


def test_a_model_whose_costs_cannot_be_measured_is_closed(monkeypatch):
    """A daemon goes on, and opens other models in this memory."""

    def fail(*_):
        raise BackendError("the graph failed")

    denoiser = ScriptedDenoiser("x")
    denoiser.predict = denoiser.prefill = fail
    monkeypatch.setattr(loading, "open_local", lambda _: (None, denoiser))
    with pytest.raises(BackendError):
        loading.open_engine(Settings())
    assert denoiser.is_closed
