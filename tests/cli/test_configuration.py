from pathlib import Path

from dg_lsp.cli.loading import configure, overrides
from dg_lsp.settings import Settings, settings_file

NOTHING = overrides(model=None, gpu_layers=None, threads=None)


def test_the_nearest_file_above_is_read(tmp_path, monkeypatch):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "dg-lsp.toml").write_text("[completion]\nmax_tokens = 7\n")
    monkeypatch.chdir(deep)
    assert settings_file(Path.cwd()) == tmp_path / "dg-lsp.toml"
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
    assert settings_file(Path("/a/b")) is None


def test_options_of_the_command_line_override_the_file(tmp_path):
    (tmp_path / "dg-lsp.toml").write_text("[model]\nname = 'a.gguf'\nthreads = 3\ngpu_layers = 4\n")
    settings = configure(overrides(model="b.gguf", gpu_layers=None, threads=0))
    assert settings.model.name == "b.gguf"
    assert settings.model.threads == 0
    assert settings.model.gpu_layers == 4


def test_a_relative_model_path_is_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "dg-lsp.toml").write_text("[model]\nname = 'models/a.gguf'\n")
    monkeypatch.chdir(tmp_path / "sub")
    assert configure(NOTHING).model.name == str(tmp_path / "models/a.gguf")
    (tmp_path / "dg-lsp.toml").write_text("[model]\nname = '/models/a.gguf'\n")
    assert configure(NOTHING).model.name == "/models/a.gguf"
    (tmp_path / "dg-lsp.toml").write_text("[model]\nname = 'dg-mini'\n")
    assert configure(NOTHING).model.name == "dg-mini"
