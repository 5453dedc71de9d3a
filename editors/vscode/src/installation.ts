/** Installs the server with pipx, or lets the user choose its path. */

import { execFile } from "node:child_process";
import * as os from "node:os";
import * as vscode from "vscode";

const INSTALL = "Install with pipx";
const CHOOSE = "Choose…";
const PIPX = "https://pipx.pypa.io/";

/** Offers to install the server or to choose its path; true if the user did one of them. */
export async function offerInstallation(log: vscode.LogOutputChannel): Promise<boolean> {
  const message = "dg-lsp is not installed: it is neither in the workspace's environment nor on PATH.";
  const choice = await vscode.window.showWarningMessage(message, INSTALL, CHOOSE);
  if (choice === INSTALL) {
    return install(log);
  }
  return choice === CHOOSE ? chooseExecutable() : false;
}

/** Runs `pipx install dg-lsp` with its output in the log; true if it succeeded. */
export async function install(log: vscode.LogOutputChannel): Promise<boolean> {
  const title = "Installing dg-lsp: llama.cpp is compiled, which takes some minutes";
  const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
  try {
    await vscode.window.withProgress(options, (_, token) => run(["install", "dg-lsp"], log, token));
    return true;
  } catch (error) {
    await reportError(error as NodeJS.ErrnoException, log);
    return false;
  }
}

function run(args: string[], log: vscode.LogOutputChannel, token: vscode.CancellationToken): Promise<void> {
  return new Promise((resolve, reject) => {
    const options = { cwd: os.homedir(), maxBuffer: 1 << 26 }; // pipx starts Python, which may import from the folder
    const process = execFile("pipx", args, options, (error) => (error ? reject(error) : resolve()));
    process.stdout?.on("data", (text: string) => log.info(text.trimEnd()));
    process.stderr?.on("data", (text: string) => log.info(text.trimEnd()));
    token.onCancellationRequested(() => process.kill());
  });
}

async function reportError(error: NodeJS.ErrnoException, log: vscode.LogOutputChannel): Promise<void> {
  if (error.code === "ENOENT") {
    const message = "pipx is not installed: install it first, or install dg-lsp into the workspace's .venv.";
    if ((await vscode.window.showErrorMessage(message, "How to get pipx")) !== undefined) {
      await vscode.env.openExternal(vscode.Uri.parse(PIPX));
    }
  } else if ((await vscode.window.showErrorMessage("pipx could not install dg-lsp.", "Show Log")) !== undefined) {
    log.show();
  }
}

async function chooseExecutable(): Promise<boolean> {
  const [file] = (await vscode.window.showOpenDialog({ title: "Where is dg-lsp?", openLabel: "Use This" })) ?? [];
  if (file !== undefined) {
    const settings = vscode.workspace.getConfiguration("dg-lsp");
    await settings.update("server.path", file.fsPath, vscode.ConfigurationTarget.Global);
  }
  return file !== undefined;
}
