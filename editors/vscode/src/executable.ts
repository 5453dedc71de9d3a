/** Where `dg-lsp` is: what the settings say, else a workspace's own environment, else PATH, else where pipx puts things. */

import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import * as vscode from "vscode";

const NAME = process.platform === "win32" ? "dg-lsp.exe" : "dg-lsp";
const BIN = process.platform === "win32" ? "Scripts" : "bin";
const ENVIRONMENTS = [".venv", "venv", "env"];

/** The path of a program that can be run, or undefined. A setting is believed even where nothing is there, to be complained of. */
export function findExecutable(): string | undefined {
  const configured = vscode.workspace.getConfiguration("dg-lsp").get<string>("server.path", "").trim();
  if (configured) {
    return expand(configured);
  }
  return [...inWorkspace(), ...onPath(), path.join(os.homedir(), ".local", "bin")]
    .map((folder) => path.join(folder, NAME))
    .find(isExecutable);
}

/** A folder that nobody has trusted may hold a program of anybody's. */
function inWorkspace(): string[] {
  const folders = vscode.workspace.isTrusted ? (vscode.workspace.workspaceFolders ?? []) : [];
  return folders.flatMap((folder) => ENVIRONMENTS.map((name) => path.join(folder.uri.fsPath, name, BIN)));
}

/** Entries that are not absolute would lead into whatever folder is open. */
function onPath(): string[] {
  return (process.env.PATH ?? "").split(path.delimiter).filter((entry) => path.isAbsolute(entry));
}

function expand(text: string): string {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath ?? "";
  const full = text.replace(/^~(?=[/\\]|$)/, os.homedir()).replaceAll("${workspaceFolder}", folder);
  return path.isAbsolute(full) || !/[/\\]/.test(full) ? full : path.resolve(folder, full);
}

function isExecutable(file: string): boolean {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return fs.statSync(file).isFile();
  } catch {
    return false;
  }
}
