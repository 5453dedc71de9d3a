/**
 * Repeats the user's last edits. The first call jumps to the next place and shows what its line would become; Tab, or
 * another call, makes the edit and jumps to the place after it. Escape, typing and another line hide it.
 */

import * as vscode from "vscode";
import type { TextEdit } from "vscode-languageclient/node";
import type { Session } from "./session";

/** One edit of the answer to `dg-lsp/nextEdit`. */
interface Edit extends Omit<TextEdit, "newText"> {
  text: string;
  command: { command: string; arguments: [string] };
}

interface Shown {
  document: vscode.TextDocument;
  version: number;
  edit: Edit;
  range: vscode.Range;
}

export class NextEdits implements vscode.Disposable {
  private shown: Shown | undefined;
  private readonly decoration = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("diffEditor.removedLineBackground"),
    after: { margin: "0 0 0 2em", color: new vscode.ThemeColor("editorGhostText.foreground") },
  });
  private readonly disposables: vscode.Disposable[];

  constructor(private readonly session: Session) {
    this.disposables = [
      this.decoration,
      vscode.commands.registerCommand("dg-lsp.nextEdit", () => this.next()),
      vscode.commands.registerCommand("dg-lsp.allNextEdits", () => this.all()),
      vscode.commands.registerCommand("dg-lsp.hideNextEdit", () => this.hide()),
      vscode.workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
        // saving a document is a change without content
        if (document === this.shown?.document && contentChanges.length > 0) {
          this.hide();
        }
      }),
      vscode.window.onDidChangeActiveTextEditor(() => this.hide()),
      vscode.window.onDidChangeTextEditorSelection(({ selections }) => {
        if (selections[0].active.line !== this.shown?.range.start.line) {
          this.hide();
        }
      }),
    ];
  }

  dispose(): void {
    this.disposables.forEach((disposable) => disposable.dispose());
  }

  /** Makes the edit that is shown, if there is one, and shows the next one. */
  private async next(): Promise<void> {
    const shown = this.shown;
    this.hide();
    if (shown !== undefined && shown.document.version === shown.version) {
      await this.make(shown.document, [shown.edit]);
    }
    const editor = vscode.window.activeTextEditor;
    const [first, ...others] = await this.request(editor);
    if (editor !== undefined && first !== undefined) {
      await this.show(editor, first, others.length + 1);
    }
  }

  /** Makes the edits of all places. */
  private async all(): Promise<void> {
    this.hide();
    const editor = vscode.window.activeTextEditor;
    const edits = await this.request(editor);
    if (editor !== undefined && edits.length > 0) {
      await this.make(editor.document, edits);
      vscode.window.setStatusBarMessage(`dg-lsp: changed ${edits.length} places`, 5000);
    }
  }

  /** The edits for the document as it is; without one, the reason is shown. */
  private async request(editor: vscode.TextEditor | undefined): Promise<Edit[]> {
    const version = editor?.document.version;
    const answer = await this.session.request<{ edits: Edit[]; reason: string }>("dg-lsp/nextEdit", editor);
    if (answer === undefined || editor?.document.version !== version) {
      return [];
    }
    if (answer.edits.length === 0) {
      vscode.window.setStatusBarMessage(`dg-lsp: no next edit: ${answer.reason}`, 5000);
    }
    return answer.edits;
  }

  private async show(editor: vscode.TextEditor, edit: Edit, numPlaces: number): Promise<void> {
    const range = asRange(edit);
    const line = editor.document.lineAt(range.start.line);
    const before = line.text.slice(0, range.start.character);
    const contentText = `→ ${(before + edit.text + line.text.slice(range.end.character)).trim()}`;
    editor.selection = new vscode.Selection(range.start, range.start);
    editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    this.shown = { document: editor.document, version: editor.document.version, edit, range };
    await vscode.commands.executeCommand("setContext", "dg-lsp.isNextEditShown", true);
    editor.setDecorations(this.decoration, [{ range: line.range, renderOptions: { after: { contentText } } }]);
    this.session.notify("textDocument/didShowInlineEdit", { item: edit });
    if (numPlaces > 1) {
      vscode.window.setStatusBarMessage(`dg-lsp: one of ${numPlaces} places; Tab makes this edit`, 5000);
    }
  }

  private hide(): void {
    if (this.shown !== undefined) {
      this.shown = undefined;
      void vscode.commands.executeCommand("setContext", "dg-lsp.isNextEditShown", false);
      vscode.window.visibleTextEditors.forEach((editor) => editor.setDecorations(this.decoration, []));
    }
  }

  private async make(document: vscode.TextDocument, edits: readonly Edit[]): Promise<void> {
    const change = new vscode.WorkspaceEdit();
    edits.forEach((edit) => change.replace(document.uri, asRange(edit), edit.text));
    if (await vscode.workspace.applyEdit(change)) {
      edits.forEach(({ command }) => void this.session.execute(command.command, command.arguments[0]));
    }
  }
}

function asRange({ range: { start, end } }: Edit): vscode.Range {
  return new vscode.Range(start.line, start.character, end.line, end.character);
}
