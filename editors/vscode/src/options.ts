/** What the user has set, as the tree that the server takes. */

import * as vscode from "vscode";

/** Settings of this extension itself, which the server knows nothing of. */
const OWN = ["enable", "languages", "server", "trace"];

type Tree = { [key: string]: unknown };

/**
 * The server's settings that somebody has set. Defaults are left out: they are the server's own, and sent along they
 * would win over a `dg-lsp.toml`.
 */
export function serverOptions(extension: vscode.Extension<unknown>): Tree {
  const settings = vscode.workspace.getConfiguration("dg-lsp");
  const tree: Tree = { editorInfo: { name: vscode.env.appName, version: vscode.version } };
  for (const key of serverKeys(extension)) {
    const found = settings.inspect(key);
    const value = found?.workspaceFolderValue ?? found?.workspaceValue ?? found?.globalValue;
    if (value !== undefined) {
      put(tree, key.split("."), value);
    }
  }
  return tree;
}

/** The server's settings that a change touches, defaults included: what was taken back has to be told, too. */
export function changedOptions(change: vscode.ConfigurationChangeEvent, extension: vscode.Extension<unknown>): Tree {
  const settings = vscode.workspace.getConfiguration("dg-lsp");
  const tree: Tree = {};
  for (const key of serverKeys(extension).filter((one) => change.affectsConfiguration(`dg-lsp.${one}`))) {
    put(tree, key.split("."), settings.get(key));
  }
  return tree;
}

function serverKeys(extension: vscode.Extension<unknown>): string[] {
  const groups = extension.packageJSON.contributes.configuration as { properties: Tree }[];
  return groups
    .flatMap((group) => Object.keys(group.properties))
    .map((name) => name.replace(/^dg-lsp\./, ""))
    .filter((key) => !OWN.includes(key.split(".")[0] ?? ""));
}

function put(tree: Tree, [first = "", ...rest]: string[], value: unknown): void {
  if (rest.length === 0) {
    tree[first] = value;
  } else {
    put((tree[first] ??= {}) as Tree, rest, value);
  }
}
