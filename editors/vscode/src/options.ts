/** The user's settings, as the tree that the server reads. */

import * as vscode from "vscode";

/** Settings of this extension that the server does not have. */
const OWN = ["enable", "languages", "server", "test", "trace"];

/** Documents of these kinds are files of a user; others are logs, the input of a commit message, or a side of a difference. */
const SCHEMES = ["file", "untitled", "vscode-notebook-cell"];

type Tree = { [key: string]: unknown };

/** The documents that the server completes: of the languages in the settings, or of all. */
export function documentSelector(): { scheme: string; language?: string }[] {
  const languages = vscode.workspace.getConfiguration("dg-lsp").get<string[]>("languages", []);
  return SCHEMES.flatMap((scheme) => (languages.length > 0 ? languages.map((language) => ({ scheme, language })) : [{ scheme }]));
}

export function isSelected(document: vscode.TextDocument): boolean {
  return vscode.languages.match(documentSelector(), document) > 0;
}

/** Whether it is a file in a language that the settings leave out. */
export function isLeftOut(document: vscode.TextDocument | undefined): boolean {
  return document !== undefined && SCHEMES.includes(document.uri.scheme) && !isSelected(document);
}

/**
 * The server's settings that the user has changed. Defaults are left out: if they were sent, they would override a
 * `dg-lsp.toml`.
 */
export function serverOptions(extension: vscode.Extension<unknown>): Tree {
  const settings = vscode.workspace.getConfiguration("dg-lsp");
  const tree: Tree = {
    editorInfo: { name: vscode.env.appName, version: vscode.version },
    isTrusted: vscode.workspace.isTrusted,
  };
  for (const key of serverKeys(extension)) {
    const value = ownValue(settings, key);
    if (value !== undefined) {
      put(tree, key.split("."), value);
    }
  }
  return tree;
}

/** The server's settings that a change affects. A setting that was reset is null: a `dg-lsp.toml` decides about it again. */
export function changedOptions(change: vscode.ConfigurationChangeEvent, extension: vscode.Extension<unknown>): Tree {
  const settings = vscode.workspace.getConfiguration("dg-lsp");
  const tree: Tree = {};
  for (const key of serverKeys(extension).filter((key) => change.affectsConfiguration(`dg-lsp.${key}`))) {
    put(tree, key.split("."), ownValue(settings, key) ?? null);
  }
  return tree;
}

/** The value that the user has set; undefined for a default. */
function ownValue(settings: vscode.WorkspaceConfiguration, key: string): unknown {
  const found = settings.inspect(key);
  return found?.workspaceFolderValue ?? found?.workspaceValue ?? found?.globalValue;
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
