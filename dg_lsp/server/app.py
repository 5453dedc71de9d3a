"""The language server: its lifecycle, documents, settings and inline completion, and how it is served.

Automatic completion never interrupts the user: errors are written to the client's log, and the answer is an empty list.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException

from dg_lsp.context.document import Encoding
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import OpenScheduler, Scheduler, SharedDevice
from dg_lsp.engine.ttfue import Usage
from dg_lsp.models.registry import known_names
from dg_lsp.server import copilot, rewrite, transport
from dg_lsp.server.acceptance import ACCEPTED
from dg_lsp.server.completion import inline_completion
from dg_lsp.server.documents import Notebook
from dg_lsp.server.session import NO_OVERRIDES, Server
from dg_lsp.settings import SAMPLER_KEY, Settings, setting_of, valid_settings, with_setting
from dg_lsp.settings_files import user_file, with_paths, with_workspace_file
from dg_lsp.system import keep_heap_small

SECTION = "dg-lsp"
TRUST = "isTrusted"
"""Option of editors with workspace trust: whether the user trusts the workspace. It is not a setting."""
USER_FILE_KEYS = ("remote.key_source", "privacy.trusted_folders", "daemon.use", SAMPLER_KEY)
"""Settings that a client cannot change, or not any more: the daemon is found before it sends them."""
EDITOR_KEYS = ("editorInfo", "editorPluginInfo", TRUST, transport.TOKEN)
"""Options that describe the client. They are no settings; the first two are those of Copilot's server."""


def create_server(
    open_scheduler: OpenScheduler,
    settings: Settings,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    usage: Usage | None = None,
) -> Server:
    """A server with its handlers, without a connection; `overrides` and `usage` are those of `Server`."""
    server = Server(open_scheduler, settings, overrides, usage)
    for method, handler in {**HANDLERS, **copilot.HANDLERS}.items():
        server.feature(method)(handler)
    server.command(ACCEPTED)(partial(copilot.accepted, server))
    # pygls declares the capability only if it is given options
    server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())(inline_completion)
    rewrite.register(server)
    return server


def initialize(ls: Server, params: types.InitializeParams) -> None:
    """Sets encoding, folders and settings. pygls answers with the capabilities."""
    ls.documents.encoding = Encoding(ls.workspace.position_encoding or Encoding.UTF16)
    _set_folders(ls)
    options = params.initialization_options
    trust = options.get(TRUST) if isinstance(options, Mapping) else None
    editor_trusts = trust if isinstance(trust, bool) else None
    ls.is_restricted = editor_trusts is False
    folder = _first_folder(ls)
    files, file_errors = with_workspace_file(ls.settings, folder, known_names(), editor_trusts=editor_trusts)
    ls.file_settings = files
    settings, option_errors = parse_options(options, files, folder)
    ls.initial_errors = file_errors + option_errors
    ls.configure(settings)
    # clients with a status bar for it send `editorInfo`
    ls.status.is_enabled = isinstance(options, Mapping) and "editorInfo" in options


async def initialized(ls: Server, _params: types.InitializedParams) -> None:
    """Shows invalid settings, then loads the model."""
    ls.show_settings_errors(ls.initial_errors)
    await ls.load_model()


def on_exit(ls: Server, _params: None) -> None:
    """Ends the session; the exit code is 1 without a `shutdown` before."""
    ls.exit_code = 0 if ls.protocol.is_shut_down else 1


def did_open(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
    """Opens a document, and prepares the first completion in it."""
    ls.open_documents([params.text_document])
    ls.warm_up(params.text_document.uri)


def did_open_notebook(ls: Server, params: types.DidOpenNotebookDocumentParams) -> None:
    """Opens a notebook with its cells, and prepares the first completion in it."""
    notebook = params.notebook_document
    did_close_notebook(ls, types.DidCloseNotebookDocumentParams(types.NotebookDocumentIdentifier(notebook.uri), ()))
    ls.documents.notebooks[notebook.uri] = Notebook(tuple(notebook.cells))
    ls.open_documents(params.cell_text_documents, notebook.uri)
    code = (cell.document for cell in notebook.cells if cell.kind is types.NotebookCellKind.Code)
    ls.warm_up(next(code, ""))


def did_change_notebook(ls: Server, params: types.DidChangeNotebookDocumentParams) -> None:
    """Inserts, deletes, moves and edits cells of a notebook."""
    uri = params.notebook_document.uri
    changed = params.change.cells
    notebook = ls.documents.notebooks.get(uri)
    if notebook is None:
        ls.log(types.MessageType.Warning, f"change of a notebook that is not open: {uri}")
    if notebook is None or changed is None:
        return
    if (structure := changed.structure) is not None:
        notebook = ls.documents.notebooks[uri] = notebook.spliced(structure.array)
        new = structure.did_open or ()
        ls.close_documents([document.uri for document in structure.did_close or ()])
        ls.open_documents(new, uri)
        if new:
            ls.warm_up(new[0].uri, 0)
    if changed.data:
        ls.documents.notebooks[uri] = notebook.with_data(changed.data)
    for text in changed.text_content or ():
        ls.change_document(text.document, text.changes)


def did_close_notebook(ls: Server, params: types.DidCloseNotebookDocumentParams) -> None:
    """Closes a notebook with its cells."""
    uri = params.notebook_document.uri
    ls.close_documents([*ls.documents.cells(uri), *(cell.uri for cell in params.cell_text_documents)])
    ls.context_provider.close(uri)
    ls.documents.notebooks.pop(uri, None)


async def did_change_configuration(ls: Server, params: types.DidChangeConfigurationParams) -> None:
    """Uses the settings that the client sends, or requests them if it sends none."""
    tree = params.settings
    if isinstance(tree, Mapping) and SECTION in tree:
        tree = tree[SECTION]
    if not isinstance(tree, Mapping) or not tree:
        workspace = ls.client_capabilities.workspace
        if workspace is None or not workspace.configuration:
            return
        requested = types.ConfigurationParams([types.ConfigurationItem(section=SECTION)])
        try:
            tree = next(iter(await ls.workspace_configuration_async(requested)), None)
        except JsonRpcException as error:
            ls.log(types.MessageType.Warning, f"the client sent no settings: {error}")
            return
    settings, errors = parse_options(tree, ls.settings, _first_folder(ls), ls.file_settings)
    ls.show_settings_errors(errors)
    if ls.configure(settings):
        await ls.load_model()
    ls.update_status()


def did_change_workspace_folders(ls: Server, _params: types.DidChangeWorkspaceFoldersParams) -> None:
    """Updates the roots of .gitignore files and imports. pygls has updated the workspace."""
    _set_folders(ls)
    ls.update_status()


async def execute_command(ls: Server, params: types.ExecuteCommandParams) -> Any:
    """Runs a command with its first argument; there are no others."""
    result = ls.protocol.fm.commands[params.command](next(iter(params.arguments or ()), None))
    return await result if isawaitable(result) else result


HANDLERS: Mapping[str, Callable[..., Any]] = {
    types.INITIALIZE: initialize,
    types.INITIALIZED: initialized,
    types.EXIT: on_exit,
    types.TEXT_DOCUMENT_DID_OPEN: did_open,
    types.TEXT_DOCUMENT_DID_CHANGE: lambda ls, params: ls.change_document(params.text_document, params.content_changes),
    types.TEXT_DOCUMENT_DID_SAVE: lambda ls, _params: ls.next_edits.end_pause(),
    types.TEXT_DOCUMENT_DID_CLOSE: lambda ls, params: ls.close_documents([params.text_document.uri]),
    types.NOTEBOOK_DOCUMENT_DID_OPEN: did_open_notebook,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE: did_change_notebook,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE: did_close_notebook,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: did_change_configuration,
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: did_change_workspace_folders,
    types.WORKSPACE_EXECUTE_COMMAND: execute_command,
}


def _set_folders(ls: Server) -> None:
    ls.exclusion.set_folders(folder.uri for folder in ls.workspace.folders.values())


def _first_folder(ls: Server) -> Path | None:
    return next(iter(ls.exclusion.roots), None)


def parse_options(
    options: object, base: Settings, folder: Path | None = None, files: Settings | None = None
) -> tuple[Settings, tuple[str, ...]]:
    """`base` with the client's options applied, and an error for each invalid option.

    An invalid option changes nothing, and the others are applied. A relative path of a model is relative to
    `folder`. A null leaves its setting to the files, whose settings are `files`, or `base`.
    """
    if not isinstance(options, Mapping):
        return base, () if options is None else ("initializationOptions must be an object",)
    tree = {group: value for group, value in options.items() if group not in EDITOR_KEYS}
    files = files or base
    settings, keys, problems = valid_settings(tree, base, files)
    bad_privacy = any(key.startswith("privacy") for key in problems)
    if bad_privacy or any(key.startswith("privacy") for key in keys):
        settings = with_setting(settings, "privacy.is_incomplete", bad_privacy or files.privacy.is_incomplete)
    for key in [key for key in USER_FILE_KEYS if key in keys]:
        settings = with_setting(settings, key, setting_of(base, key))
        problems[key] = f"set it in {user_file()}"
    settings = with_paths(settings, keys, folder, known_names())
    errors = [f"{key} is not used" + (f" ({problem})" if problem else "") for key, problem in problems.items()]
    return settings, tuple(errors)


def serve_client(
    open_engine: Callable[[Settings], Engine],
    settings: Settings,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    address: tuple[str, int] | None = None,
    token: str = "",
) -> int:
    """Serves one client on standard input and output, or the first one at the TCP address that sends the token.

    Returns the exit code of the process. `overrides` is that of `create_server`. Raises as `first_client` does.
    """
    keep_heap_small()
    server = create_server(partial(Scheduler, open_engine, device=SharedDevice()), settings, overrides)
    streams = transport.stdio_streams() if address is None else transport.first_client(*address, token)
    return asyncio.run(server.serve(streams))
