"""Settings that change while the server runs: pushed by the client, or asked for where it would rather be asked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lsprotocol import types

from dg_lsp.server.session import parse_options

if TYPE_CHECKING:
    from dg_lsp.server.session import Server

SECTION = "dg-lsp"


def register(server: "Server") -> None:
    """Listens to changes."""

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def did_change_configuration(params: types.DidChangeConfigurationParams) -> None:
        tree = params.settings
        if isinstance(tree, Mapping) and SECTION in tree:
            tree = tree[SECTION]
        if not isinstance(tree, Mapping) or not tree:
            tree = await _asked(server)
        if isinstance(tree, Mapping):
            await _take(server, tree)


async def _asked(server: "Server") -> object:
    workspace = server.client_capabilities.workspace
    if workspace is None or not workspace.configuration:
        return None
    params = types.ConfigurationParams([types.ConfigurationItem(section=SECTION)])
    answers = await server.workspace_configuration_async(params)
    return answers[0] if answers else None


async def _take(server: "Server", tree: Mapping[str, object]) -> None:
    settings, complaints = parse_options(tree, server.settings, server.ignored.folder)
    for complaint in complaints:
        if complaint not in server.told:
            server.told.add(complaint)
            server.show(types.MessageType.Error, f"dg-lsp settings: {complaint}")
    if server.configure(settings):
        await server.load_model()
    server.tell_place()
