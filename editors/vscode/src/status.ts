/** The status bar: what the server last said of itself, in a few characters. */

import * as vscode from "vscode";

/** The server's notification `didChangeStatus`. */
export interface Status {
  busy: boolean;
  message: string;
  kind: "Normal" | "Error" | "Warning" | "Inactive";
  dgLsp?: {
    model?: string | null;
    state?: State;
    lastMs?: number | null;
    accepted?: number | null;
  };
}

type State = "loading" | "ready" | "off" | "excluded" | "error";

const ICONS: Record<State, string> = {
  loading: "$(loading~spin)",
  ready: "$(sparkle)",
  off: "$(circle-slash)",
  excluded: "$(eye-closed)",
  error: "$(error)",
};

const LOADING: Status = { busy: true, message: "The server is starting.", kind: "Normal", dgLsp: { state: "loading" } };

export class StatusBar implements vscode.Disposable {
  private readonly item: vscode.StatusBarItem;
  private status = LOADING;

  constructor() {
    this.item = vscode.window.createStatusBarItem("dg-lsp.status", vscode.StatusBarAlignment.Right, 100);
    this.item.name = "dg-lsp";
    this.item.command = "dg-lsp.showMenu";
    this.update();
    this.item.show();
  }

  /** The server has said something of itself. */
  set(status: Status): void {
    this.status = status;
    this.update();
  }

  /** There is no server yet. */
  setLoading(): void {
    this.set(LOADING);
  }

  /** There is no server and there will be none before somebody does something. */
  setError(message: string): void {
    this.set({ busy: false, message, kind: "Error", dgLsp: { state: "error" } });
  }

  /** Writes down what is known; also when another editor or setting makes something else of it. */
  update(): void {
    const { model, lastMs, accepted } = this.status.dgLsp ?? {};
    const state = this.state();
    const isWorking = state === "ready" && this.status.busy;
    const words = [isWorking ? ICONS.loading : ICONS[state], model ?? "dg-lsp"];
    if (state === "ready" && lastMs != null) {
      words.push(`${Math.round(lastMs)} ms`);
    } else if (state === "off" || state === "excluded") {
      words.push(state);
    }
    this.item.text = words.join(" ");
    this.item.backgroundColor = state === "error" ? new vscode.ThemeColor("statusBarItem.errorBackground") : undefined;
    // how many were shown is not ours to tell: VS Code says it to its own extensions only
    const counts = accepted ? [`${accepted} accepted`] : [];
    const said = isWorking ? "thinking" : state;
    const sentences = [`dg-lsp: ${said}`, this.status.message, ...counts].filter(Boolean);
    this.item.tooltip = sentences.join("\n");
    this.item.accessibilityInformation = { label: sentences.join(", ") };
  }

  dispose(): void {
    this.item.dispose();
  }

  private state(): State {
    const state = this.status.dgLsp?.state ?? (this.status.kind === "Error" ? "error" : "ready");
    return state === "ready" && !isEnabled(vscode.window.activeTextEditor?.document) ? "off" : state;
  }
}

/** Whether completions are wanted unasked in a document. */
export function isEnabled(document: vscode.TextDocument | undefined): boolean {
  return vscode.workspace.getConfiguration("dg-lsp", document).get("enable", true);
}
