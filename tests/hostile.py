"""A folder of files that leave a mark when a program executes them, and names of files with secrets."""

import json
import sys

NAMES = (
    *("json.py", "queue.py", "typing.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py"),
    *("dg_lsp/__init__.py", "pip/__init__.py", "numpy/__init__.py", "llama_cpp/__init__.py"),
)
SECRETS = (
    "server.key::$DATA", "server.key :s", "server.key%20", "\uff49d_rsa", "server.k\u200bey", "a.zip::.env",
    ".git/config", "%252Eenv",
    ".env", ".ENV", ".Env.Local", "deploy/.env.production", "prod.env", "PROD.ENV", ".env.", ".env ", ".env~",
    ".env.bak", ".envs/.production/.django", "server.pem", "Server.PEM", "a/b/tls.key", "tls.key.old",
    "AuthKey_A1.p8", "id_rsa", "ID_RSA", "id_ed25519_work", "id_rsa.bak", ".netrc", "_NETRC", ".netrc~", ".npmrc",
    ".pypirc", ".boto", ".BOTO", ".aws/credentials", ".AWS/config", "home/.ssh/known_hosts", "home/.SSH/config",
    ".kube/config", "kubeconfig.yaml", "prod.tfvars", "prod.auto.tfvars.json", ".docker/config.json",
    ".Docker/Config.json", "secrets.yaml", "Secrets.YML", "client_secret_42.apps.json", "service-account-1.json",
    "application_default_credentials.json", "accessKeys.csv", ".git-credentials", ".bash_history",
    ".python_history", "ConsoleHost_history.txt", "a%5C.env", "%2Eenv", "huggingface/token", ".vault-token",
    "secrets (1).yaml", "id_rsa - Copy", "server.key.txt", "server.pem.1", "secrets.yaml.git", "serviceAccountKey.json",
    "google-credentials.json", "etc/ssh/ssh_host_ed25519_key", "etc/shadow", ".dev.vars", ".kaggle/kaggle.json",
    "#.env#", "#id_rsa#", ".#.npmrc", ".secrets.yml.swp", ".id_rsa~", ".id_rsa.un~", "secrets (copy).yml",
    "secrets (another copy).yml", "copy of id_rsa", "secrets copy 2.yml", "secrets.yml.20261124", "secrets-old.yml",
    "%home%me%.env.swp", "#!home!me!.netrc#", ".tls.key.kate-swp", "credentials.prod.json", "vault.yml",
    "vault-dev.yml", "keys.json", "appsettings.Production.json", "wp-config.php", "wp-config.php.bak", "key.der",
    "deploy_rsa", "passwords.txt", "secret.toml", "api_keys.json", "~$passwords.csv", ".~lock.credentials.csv#",
    "app.secrets",
)  # fmt: skip
"""Spellings of files that usually contain secrets."""


def make_hostile(folder, marks, names=NAMES):
    """Writes the files into `folder`; a file that is executed creates one of its name in `marks`."""
    marks.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(marks / name.replace('/', '-'))!r}, 'w').close()\n")


def executed(marks):
    return sorted(path.name for path in marks.iterdir())


def module_names():
    """Files with the names of all modules of Python that are written in Python, which any import may read."""
    return [f"{name}.py" for name in sys.stdlib_module_names - set(sys.builtin_module_names) if name[:1] != "_"]


def make_hostile_settings(folder, marks, **more):
    """A `dg-lsp.toml`, settings of VS Code, and a server in the environment of the folder, which leave marks too.

    Without their model nothing is completed. `more` are further settings or other values.
    """
    (folder / "sitecustomize.py").write_text(f"open({str(marks / 'sitecustomize')!r}, 'w').close()\n")
    program = folder / ".venv/bin/dg-lsp"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch '{marks / 'program'}'\n")
    program.chmod(0o755)
    values = {
        "model.name": folder / "other.gguf",
        "privacy.audit_log": marks / "audit",
        "remote.url": "http://127.0.0.1:9",
        **more,
    }
    lines = [f"{key} = {json.dumps(value, default=str)}\n" for key, value in values.items()]
    (folder / "dg-lsp.toml").write_text("".join(lines))
    options = {f"dg-lsp.{key}": value for key, value in {**values, "server.path": program}.items()}
    (folder / ".vscode").mkdir()
    (folder / ".vscode/settings.json").write_text(json.dumps(options, default=str))
