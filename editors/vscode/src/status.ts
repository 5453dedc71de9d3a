/** The status bar with the state of the server. */

import * as vscode from "vscode";
import { isLeftOut, isSelected } from "./options";
import type { Snooze } from "./snooze";

/** The server's notification `didChangeStatus`. */
export interface Status {
  busy: boolean;
  message: string;
  kind: "Normal" | "Error" | "Warning" | "Inactive";
  dgLsp?: {
    model?: string | null;
    rewriteModel?: string | null;
    state?: State;
    lastMs?: number | null;
    accepted?: number | null;
    today?: { usefulEdits: number; medianMs: number | null };
  };
}

type State = "loading" | "ready" | "off" | "snoozed" | "excluded" | "unsupported" | "error";

const ICONS: Record<State, string> = {
  loading: "$(loading~spin)",
  ready: "$(sparkle)",
  off: "$(circle-slash)",
  snoozed: "$(bell-slash)",
  excluded: "$(eye-closed)",
  unsupported: "$(circle-slash)",
  error: "$(error)",
};

const WAITING: Status = {
  busy: false,
  message: "The server starts with the first file; dg-lsp.languages may limit the languages.",
  kind: "Inactive",
  dgLsp: { state: "off" },
};
const LOADING: Status = { busy: true, message: "The server is starting.", kind: "Normal", dgLsp: { state: "loading" } };

/** Settings without which VS Code requests no automatic completions. */
const SWITCHES = [
  ["dg-lsp", "enable"],
  ["editor.inlineSuggest", "enabled"],
] as const;

export class StatusBar implements vscode.Disposable {
  private readonly item: vscode.StatusBarItem;
  private status = WAITING;

  constructor(private readonly snooze: Snooze) {
    this.item = vscode.window.createStatusBarItem("dg-lsp.status", vscode.StatusBarAlignment.Right, 100);
    this.item.name = "dg-lsp";
    this.item.command = "dg-lsp.showMenu";
    this.update();
    this.item.show();
  }

  /** Shows a status of the server. */
  set(status: Status): void {
    this.status = status;
    this.update();
  }

  /** Shows that the server is starting. */
  setLoading(): void {
    this.set(LOADING);
  }

  /** Shows an error that the user has to fix. */
  setError(message: string): void {
    this.set({ busy: false, message, kind: "Error", dgLsp: { state: "error" } });
  }

  /** Draws the status; also needed after a change of the active editor or the settings. */
  update(): void {
    const { model, rewriteModel, lastMs, accepted, today } = this.status.dgLsp ?? {};
    const state = this.state();
    const isWorking = state === "ready" && this.status.busy;
    const words = [isWorking ? ICONS.loading : ICONS[state], model ?? "dg-lsp"];
    if (state === "ready" && lastMs != null) {
      words.push(`${Math.round(lastMs)} ms`);
      if (today?.usefulEdits) {
        words.push(`· ${today.usefulEdits} useful`);
      }
    } else if (state === "snoozed") {
      words.push(`snoozed until ${this.snoozeEnd()}`);
    } else if (state === "off" || state === "excluded" || state === "unsupported") {
      words.push(state);
    }
    if (state === "ready" && this.status.message) {
      words.push(`· ${this.status.message}`); // why a requested completion is missing
    }
    this.item.text = words.join(" ");
    void vscode.commands.executeCommand("setContext", "dg-lsp.isServed", this.isServed());
    this.item.backgroundColor = state === "error" ? new vscode.ThemeColor("statusBarItem.errorBackground") : undefined;
    const other = rewriteModel ? `Rewrites: ${rewriteModel}` : "";
    // VS Code does not report which completions it has shown
    const counts = accepted ? [`${accepted} accepted`] : [];
    if (today?.usefulEdits) {
      const edits = today.usefulEdits === 1 ? "1 useful edit" : `${today.usefulEdits} useful edits`;
      counts.push(`today ${edits}, median ${Math.round(today.medianMs ?? 0)} ms`);
    }
    const activity = isWorking ? "busy" : state;
    const reason = state === "off" || state === "snoozed" ? this.reason(vscode.window.activeTextEditor?.document) : "";
    const sentences = [`dg-lsp: ${activity}`, reason, this.status.message, other, ...counts].filter(Boolean);
    this.item.tooltip = sentences.join("\n");
    this.item.accessibilityInformation = { label: sentences.join(", ") };
  }

  /** Why the editor requests no automatic completions in a document; empty if it does. The server has further reasons. */
  reason(document: vscode.TextDocument | undefined): string {
    return offReason(document) || (this.snooze.until === undefined ? "" : `No automatic completions until ${this.snoozeEnd()}.`);
  }

  dispose(): void {
    this.item.dispose();
  }

  /** Whether commands make sense for the active document. */
  private isServed(): boolean {
    const document = vscode.window.activeTextEditor?.document;
    const state = this.status.dgLsp?.state;
    return document !== undefined && isSelected(document) && state !== "excluded" && state !== "unsupported";
  }

  private state(): State {
    const state = this.status.dgLsp?.state ?? (this.status.kind === "Error" ? "error" : "ready");
    const document = vscode.window.activeTextEditor?.document;
    if (state !== "ready") {
      return state;
    }
    if (offReason(document)) {
      return "off";
    }
    return this.snooze.until === undefined ? "ready" : "snoozed";
  }

  private snoozeEnd(): string {
    return this.snooze.until?.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) ?? "";
  }
}

/** The setting because of which automatic completions are off in a document; empty if they are on. */
function offReason(document: vscode.TextDocument | undefined): string {
  if (isLeftOut(document)) {
    return `dg-lsp.languages does not name ${document?.languageId}.`;
  }
  const off = SWITCHES.find(([section, key]) => !vscode.workspace.getConfiguration(section, document).get(key, true));
  return off ? `${off.join(".")} is false; Alt+\\ requests a completion.` : "";
}
