/** Starts `dg-lsp lsp` and shows its completions and status. The server decides what is shown and when. */

import * as vscode from "vscode";
import { registerCommands } from "./commands";
import { Denoising } from "./denoising";
import { Installation } from "./installation";
import { NextEdits } from "./nextEdit";
import { changedOptions, isSelected } from "./options";
import { Preview } from "./preview";
import { Session } from "./session";
import { Snooze } from "./snooze";
import { StatusBar } from "./status";

let session: Session | undefined;

export function activate({ extension, extensionUri, globalStorageUri, subscriptions }: vscode.ExtensionContext): void {
  const log = vscode.window.createOutputChannel("dg-lsp", { log: true });
  const snooze = new Snooze();
  const statusBar = new StatusBar(snooze);
  const preview = new Preview();
  const wheel = vscode.Uri.joinPath(extensionUri, "dist", `dg_lsp-${extension.packageJSON.version}-py3-none-any.whl`);
  const installation = new Installation(globalStorageUri.fsPath, wheel.fsPath, log);
  const current = new Session(extension, log, statusBar, preview, installation);
  session = current;
  const denoising = new Denoising(extensionUri, (on) => current.notify("dg-lsp/watch", { on }));
  subscriptions.push(
    log,
    snooze,
    statusBar,
    preview,
    denoising,
    new NextEdits(current),
    current.onFrame((frame) => denoising.draw(frame)),
    current.onStart(() => {
      notifyFocus(current);
      if (denoising.isVisible) {
        current.notify("dg-lsp/watch", { on: true });
      }
    }),
    snooze.onChange(() => statusBar.update()),
    ...registerCommands(current, installation, snooze, log, () => denoising.show()),
    vscode.window.onDidChangeActiveTextEditor(() => {
      statusBar.update();
      notifyFocus(current);
    }),
    vscode.workspace.onDidChangeConfiguration((change) => {
      statusBar.update();
      if (["server.path", "languages"].some((key) => change.affectsConfiguration(`dg-lsp.${key}`))) {
        startIfNeeded(current, current.hasStarted);
        return;
      }
      const settings = changedOptions(change, extension);
      if (Object.keys(settings).length > 0) {
        current.notify("workspace/didChangeConfiguration", { settings });
      }
    }),
  );
  const waiting = vscode.workspace.onDidOpenTextDocument(() => {
    startIfNeeded(current);
    if (current.hasStarted) {
      waiting.dispose();
    }
  });
  // the server reads the workspace's dg-lsp.toml when it starts
  const trusted = vscode.workspace.onDidGrantWorkspaceTrust(() => startIfNeeded(current, current.hasStarted));
  // a new folder may contain dg-lsp
  const folders = vscode.workspace.onDidChangeWorkspaceFolders(() => startIfNeeded(current, current.isMissing));
  subscriptions.push(waiting, trusted, folders);
  startIfNeeded(current);
}

/** Stops the server with the extension. */
export function deactivate(): Promise<void> | undefined {
  return session?.stop();
}

/** Starts the server where a document is open that it completes, because a model needs memory; again with `again`. */
function startIfNeeded(target: Session, again = false): void {
  if (again || (!target.hasStarted && vscode.workspace.textDocuments.some(isSelected))) {
    void vscode.commands.executeCommand("dg-lsp.restart");
  }
}

/** Reports the document that the user edits, and the cursor. */
function notifyFocus(target: Session): void {
  const editor = vscode.window.activeTextEditor;
  const focus = editor && {
    textDocument: { uri: editor.document.uri.toString() },
    position: editor.selection.active,
  };
  target.notify("textDocument/didFocus", focus ?? {});
}
