/** The preview of a rewrite: a diff that the user applies or discards. */

import * as vscode from "vscode";

const SCHEME = "dg-lsp-preview";

const DISCARDED = "cancelled";
const CHANGED = "the document changed meanwhile, so nothing was changed";

/** Why a rewrite was not accepted; undefined if it was. */
type Verdict = string | undefined;

interface Pending {
  document: vscode.TextDocument;
  text: string;
  settle: (verdict: Verdict) => void;
}

export class Preview implements vscode.Disposable, vscode.TextDocumentContentProvider {
  private readonly pending = new Map<string, Pending>();
  private readonly disposables: vscode.Disposable[];
  private count = 0;

  constructor() {
    this.disposables = [
      vscode.workspace.registerTextDocumentContentProvider(SCHEME, this),
      vscode.workspace.onDidChangeTextDocument((event) => this.settleChanged(event)),
      vscode.window.tabGroups.onDidChangeTabs((event) => event.closed.forEach((tab) => this.settleTab(tab, DISCARDED))),
      vscode.commands.registerCommand("dg-lsp.applyPreview", () => this.settleTab(activeTab(), undefined)),
      vscode.commands.registerCommand("dg-lsp.discardPreview", () => this.settleTab(activeTab(), DISCARDED)),
    ];
  }

  /** Shows the diff of a document and the edits until the user decides. */
  async confirm(document: vscode.TextDocument, edits: readonly vscode.TextEdit[], label: string): Promise<Verdict> {
    const proposed = vscode.Uri.from({ scheme: SCHEME, path: document.uri.path, query: String(++this.count) });
    const verdict = new Promise<Verdict>((settle) => {
      this.pending.set(proposed.toString(), { document, text: edited(document, edits), settle });
    });
    // a cell's language does not follow from the path of its notebook
    await vscode.languages.setTextDocumentLanguage(await vscode.workspace.openTextDocument(proposed), document.languageId);
    await vscode.commands.executeCommand("vscode.diff", document.uri, proposed, label, { preview: false });
    const reason = await verdict;
    this.pending.delete(proposed.toString());
    await closeTab(proposed);
    await vscode.window.showTextDocument(document);
    return reason;
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.pending.get(uri.toString())?.text ?? "";
  }

  dispose(): void {
    this.pending.forEach((pending) => pending.settle(DISCARDED));
    this.disposables.forEach((disposable) => disposable.dispose());
  }

  private settleTab(tab: vscode.Tab | undefined, verdict: Verdict): void {
    if (tab?.input instanceof vscode.TabInputTextDiff) {
      this.pending.get(tab.input.modified.toString())?.settle(verdict);
    }
  }

  private settleChanged(event: vscode.TextDocumentChangeEvent): void {
    for (const pending of this.pending.values()) {
      if (pending.document === event.document && event.contentChanges.length > 0) {
        pending.settle(CHANGED);
      }
    }
  }
}

function edited(document: vscode.TextDocument, edits: readonly vscode.TextEdit[]): string {
  let text = document.getText();
  for (const edit of [...edits].sort((a, b) => b.range.start.compareTo(a.range.start))) {
    text = text.slice(0, document.offsetAt(edit.range.start)) + edit.newText + text.slice(document.offsetAt(edit.range.end));
  }
  return text;
}

function activeTab(): vscode.Tab | undefined {
  return vscode.window.tabGroups.activeTabGroup.activeTab;
}

async function closeTab(proposed: vscode.Uri): Promise<void> {
  const isOurs = ({ input }: vscode.Tab) =>
    input instanceof vscode.TabInputTextDiff && input.modified.toString() === proposed.toString();
  await vscode.window.tabGroups.close(vscode.window.tabGroups.all.flatMap((group) => group.tabs).filter(isOurs));
}
