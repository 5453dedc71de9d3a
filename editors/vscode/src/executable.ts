/** Finds `dg-lsp`: in the settings, the workspace's environment, PATH, or pipx's folder. */

import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import * as vscode from "vscode";

const NAME = process.platform === "win32" ? "dg-lsp.exe" : "dg-lsp";
const BIN = process.platform === "win32" ? "Scripts" : "bin";
const ENVIRONMENTS = [".venv", "venv", "env"];

/** The path of the program, or undefined. A path in the settings is returned unchecked, so that a wrong one is reported. */
export function findExecutable(): string | undefined {
  const configured = vscode.workspace.getConfiguration("dg-lsp").get<string>("server.path", "").trim();
  if (configured) {
    return expand(configured);
  }
  return [...inWorkspace(), ...onPath(), path.join(os.homedir(), ".local", "bin")]
    .map((folder) => path.join(folder, NAME))
    .find(isExecutable);
}

/** An untrusted workspace may contain a harmful program. */
function inWorkspace(): string[] {
  const folders = vscode.workspace.isTrusted ? (vscode.workspace.workspaceFolders ?? []) : [];
  return folders.flatMap((folder) => ENVIRONMENTS.map((name) => path.join(folder.uri.fsPath, name, BIN)));
}

/** Relative entries are left out: they would be inside the open folder. */
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
