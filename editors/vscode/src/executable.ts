/** Finds `dg-lsp`: in the settings, the workspace's environment, PATH, or the folder of uv and pipx. */

import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import * as vscode from "vscode";

export const NAME = process.platform === "win32" ? "dg-lsp.exe" : "dg-lsp";
export const BIN = process.platform === "win32" ? "Scripts" : "bin";
const ENVIRONMENTS = [".venv", "venv", "env"];

/** The path of the program, or undefined. A path in the settings is returned unchecked, so that a wrong one is reported. */
export function findExecutable(): string | undefined {
  const configured = vscode.workspace.getConfiguration("dg-lsp").get<string>("server.path", "").trim();
  if (configured) {
    return expand(configured);
  }
  return inFolders([...inWorkspace(), ...searchPath(), path.join(os.homedir(), ".local", "bin")], NAME);
}

/** An untrusted workspace may contain a harmful program. */
function inWorkspace(): string[] {
  const folders = vscode.workspace.isTrusted ? (vscode.workspace.workspaceFolders ?? []) : [];
  return folders.flatMap((folder) => ENVIRONMENTS.map((name) => path.join(folder.uri.fsPath, name, BIN)));
}

/** The path of a program on PATH. */
export function onPath(name: string): string | undefined {
  return inFolders(searchPath(), name);
}

function inFolders(folders: string[], name: string): string | undefined {
  return folders.map((folder) => path.join(folder, name)).find(isExecutable);
}

/** Relative entries are left out: they would be inside the open folder. */
function searchPath(): string[] {
  return (process.env.PATH ?? "").split(path.delimiter).filter((entry) => path.isAbsolute(entry));
}

function expand(text: string): string {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath ?? "";
  const full = text.replace(/^~(?=[/\\]|$)/, os.homedir()).replaceAll("${workspaceFolder}", () => folder);
  return path.isAbsolute(full) || !/[/\\]/.test(full) ? full : path.resolve(folder, full);
}

export function isExecutable(file: string): boolean {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return fs.statSync(file).isFile();
  } catch {
    return false;
  }
}
