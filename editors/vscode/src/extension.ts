/** Starts `dg-lsp lsp` and shows what it says. What is offered, when and why is the server's to decide. */

import * as vscode from "vscode";
import { registerCommands } from "./commands";
import { Denoising } from "./denoising";
import { changedOptions } from "./options";
import { Preview } from "./preview";
import { Session } from "./session";
import { StatusBar } from "./status";

let session: Session | undefined;

export function activate({ extension, extensionUri, subscriptions }: vscode.ExtensionContext): void {
  const log = vscode.window.createOutputChannel("dg-lsp", { log: true });
  const statusBar = new StatusBar();
  const preview = new Preview();
  const ours = new Session(extension, log, statusBar, preview);
  session = ours;
  const denoising = new Denoising(extensionUri, (on) => ours.notify("dg-lsp/watch", { on }));
  subscriptions.push(
    log,
    statusBar,
    preview,
    denoising,
    ours.onFrame((frame) => denoising.draw(frame)),
    ours.onStart(() => {
      tellFocus(ours);
      if (denoising.isSeen) {
        ours.notify("dg-lsp/watch", { on: true });
      }
    }),
    ...registerCommands(ours, log, () => denoising.show()),
    vscode.window.onDidChangeActiveTextEditor(() => {
      statusBar.update();
      tellFocus(ours);
    }),
    vscode.workspace.onDidChangeConfiguration((change) => {
      statusBar.update();
      if (["server.path", "languages"].some((key) => change.affectsConfiguration(`dg-lsp.${key}`))) {
        void vscode.commands.executeCommand("dg-lsp.restart");
        return;
      }
      const settings = changedOptions(change, extension);
      if (Object.keys(settings).length > 0) {
        ours.notify("workspace/didChangeConfiguration", { settings });
      }
    }),
  );
  startOnceWanted(subscriptions);
}

/** The session ends with its process. */
export function deactivate(): Promise<void> | undefined {
  return session?.stop();
}

/** A model takes memory: none is loaded before a file is open that it is for. */
function startOnceWanted(subscriptions: vscode.Disposable[]): void {
  const isWanted = ({ languageId }: vscode.TextDocument) =>
    vscode.workspace.getConfiguration("dg-lsp").get<string[]>("languages", []).includes(languageId);
  const start = () => void vscode.commands.executeCommand("dg-lsp.restart");
  if (vscode.workspace.textDocuments.some(isWanted)) {
    start();
    return;
  }
  const waiting = vscode.workspace.onDidOpenTextDocument((document) => {
    if (isWanted(document)) {
      waiting.dispose();
      start();
    }
  });
  subscriptions.push(waiting);
}

function tellFocus(to: Session): void {
  const uri = vscode.window.activeTextEditor?.document.uri.toString();
  to.notify("textDocument/didFocus", uri === undefined ? {} : { textDocument: { uri } });
}
