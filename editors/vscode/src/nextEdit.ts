/**
 * Edits that follow from the user's last ones. After a pause in typing the first one is shown in its line, with a hint at
 * the cursor. Tab jumps there; Tab again makes the edit and jumps to the next one. Escape dismisses it. Insertions in the line
 * of the cursor are ghost text.
 */

import * as vscode from "vscode";
import type { TextEdit } from "vscode-languageclient/node";
import type { Session } from "./session";

/** One edit of the answer to `dg-lsp/nextEdit`. */
interface Edit extends Omit<TextEdit, "newText"> {
  text: string;
  /** Where the same change is proposed, this one included. */
  places: number;
  command: vscode.Command & { arguments: [string] };
}

interface Shown {
  document: vscode.TextDocument;
  version: number;
  edit: Edit;
  range: vscode.Range;
  numPlaces: number;
  /** The user has jumped to the edit. */
  isThere: boolean;
  /** The user has requested it, so the ones after it are requested, too. */
  isRequested: boolean;
}

/** Milliseconds after a change; the server waits until the user pauses. */
const DELAY_MS = 100;
const INVOKED = 1;
const AUTOMATIC = 2;

export class NextEdits implements vscode.Disposable, vscode.InlineCompletionItemProvider, vscode.CodeActionProvider {
  private shown: Shown | undefined;
  /** Of the newest request or dismissal; answers to older requests are not shown. */
  private number = 0;
  private timer: NodeJS.Timeout | undefined;
  private readonly place = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("diffEditor.removedLineBackground"),
    after: { margin: "0 0 0 2em", color: new vscode.ThemeColor("editorGhostText.foreground") },
  });
  private readonly hint = vscode.window.createTextEditorDecorationType({
    after: { margin: "0 0 0 2em", color: new vscode.ThemeColor("editorCodeLens.foreground") },
  });
  private readonly disposables: vscode.Disposable[];

  constructor(private readonly session: Session) {
    this.disposables = [
      this.place,
      this.hint,
      vscode.languages.registerInlineCompletionItemProvider({ pattern: "**" }, this),
      vscode.languages.registerCodeActionsProvider({ pattern: "**" }, this),
      vscode.commands.registerCommand("dg-lsp.nextEdit", () => this.next()),
      vscode.commands.registerCommand("dg-lsp.allNextEdits", () => this.all()),
      vscode.commands.registerCommand("dg-lsp.hideNextEdit", () => this.dismiss()),
      vscode.workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
        // saving a document is a change without content
        if (contentChanges.length > 0 && document === vscode.window.activeTextEditor?.document) {
          this.hide();
          this.proposeSoon();
        }
      }),
      vscode.workspace.onDidSaveTextDocument(() => this.shown ?? this.proposeSoon()),
      vscode.window.onDidChangeActiveTextEditor(() => this.hide()),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => this.follow(textEditor)),
    ];
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.disposables.forEach((disposable) => disposable.dispose());
  }

  /** The edit as ghost text, if it only inserts behind the cursor in its line. */
  provideInlineCompletionItems(document: vscode.TextDocument, position: vscode.Position): vscode.InlineCompletionItem[] {
    const item = this.shown?.document === document ? inlineItem(this.shown, position) : undefined;
    return item === undefined ? [] : [item];
  }

  provideCodeActions(document: vscode.TextDocument): vscode.CodeAction[] {
    if (this.shown?.document !== document || this.shown.numPlaces < 2) {
      return [];
    }
    const action = new vscode.CodeAction(`Apply to all ${this.shown.numPlaces} places`, vscode.CodeActionKind.RefactorRewrite);
    action.command = { title: action.title, command: "dg-lsp.allNextEdits" };
    return [action];
  }

  private proposeSoon(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.propose(), DELAY_MS);
  }

  /** Shows the first edit without moving the cursor. */
  private async propose(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (editor !== undefined && this.session.isAutomatic(editor.document)) {
      await this.request(editor, false, false);
    }
  }

  /** Jumps to the edit that is shown; makes it there, and jumps to the next one. */
  private async next(): Promise<void> {
    const shown = this.shown;
    const editor = vscode.window.activeTextEditor;
    if (editor === undefined || shown === undefined) {
      return editor && this.request(editor, true, true);
    }
    if (!shown.isThere) {
      return this.jump(editor, shown);
    }
    this.hide();
    if (await this.make(shown)) {
      clearTimeout(this.timer);
      await this.request(editor, shown.isRequested, true);
    }
  }

  /** Makes the edits of all places; the server sends them as one edit. */
  private async all(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    this.hide();
    if (editor !== undefined) {
      await this.session.executeAtSelection("dg-lsp.applyNextEdits");
    }
  }

  /** Shows the first edit for the document as it is. If the user has requested one, a missing one is explained. */
  private async request(editor: vscode.TextEditor, isRequested: boolean, jumps: boolean): Promise<void> {
    const { document } = editor;
    const { version } = document;
    const number = ++this.number;
    const context = { triggerKind: isRequested ? INVOKED : AUTOMATIC };
    const answer = await this.session.request<{ edits: Edit[]; reason: string }>("dg-lsp/nextEdit", editor, { context }, !isRequested);
    if (answer === undefined || number !== this.number || document.version !== version || vscode.window.activeTextEditor !== editor) {
      return;
    }
    const [edit] = answer.edits;
    if (edit !== undefined) {
      const shown = { document, version, edit, range: asRange(edit), numPlaces: edit.places, isThere: false, isRequested };
      await this.show(editor, shown, jumps);
    } else if (isRequested) {
      vscode.window.setStatusBarMessage(`dg-lsp: no next edit: ${answer.reason}`, 5000);
    }
  }

  private async show(editor: vscode.TextEditor, shown: Shown, jumps: boolean): Promise<void> {
    this.hide();
    this.shown = shown;
    this.session.notify("textDocument/didShowInlineEdit", { item: shown.edit });
    if (!jumps && inlineItem(shown, editor.selection.active) !== undefined) {
      await vscode.commands.executeCommand("editor.action.inlineSuggest.trigger");
      return;
    }
    // the keys work before the edit is visible
    await vscode.commands.executeCommand("setContext", "dg-lsp.isNextEditShown", true);
    if (this.shown !== shown) {
      return;
    }
    if (jumps) {
      this.jump(editor, shown);
    } else {
      this.follow(editor);
    }
    const { document, edit, range } = shown;
    const before = document.lineAt(range.start.line).text.slice(0, range.start.character);
    const after = document.lineAt(range.end.line).text.slice(range.end.character);
    const contentText = `→ ${(before + edit.text + after).trim().split(/\r?\n/).join(" ⏎ ")}`;
    editor.setDecorations(this.place, [{ range, renderOptions: { after: { contentText } } }]);
  }

  private jump(editor: vscode.TextEditor, shown: Shown): void {
    shown.isThere = true;
    editor.selection = new vscode.Selection(shown.range.start, shown.range.start);
    editor.revealRange(shown.range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    this.follow(editor);
  }

  /** Draws the hint at the cursor, and decides what Tab does: where only blanks precede the cursor, it indents. */
  private follow(editor: vscode.TextEditor): void {
    const shown = this.shown;
    if (shown === undefined || editor.document !== shown.document) {
      return;
    }
    const cursor = editor.selection.active;
    if (shown.isThere && cursor.line !== shown.range.start.line) {
      this.hide();
      return;
    }
    const line = editor.document.lineAt(cursor.line);
    const isAtEdit = shown.isThere && cursor.isEqual(shown.range.start);
    const isTab = isAtEdit || !isIndenting(editor.document, cursor);
    void vscode.commands.executeCommand("setContext", "dg-lsp.isTabForNextEdit", isTab);
    const places = shown.numPlaces > 1 ? ` (${shown.numPlaces} places)` : "";
    const contentText = shown.isThere ? `Tab: make this edit${places}` : `Tab: next edit in line ${shown.range.start.line + 1}${places}`;
    const end = line.range.end;
    const isDrawn = isTab && !(shown.isThere && places === "");
    editor.setDecorations(this.hint, isDrawn ? [{ range: new vscode.Range(end, end), renderOptions: { after: { contentText } } }] : []);
  }

  private dismiss(): void {
    this.number++;
    if (this.shown !== undefined) {
      this.session.notify("dg-lsp/didDismissEdit", { item: this.shown.edit });
      this.hide();
    }
  }

  private hide(): void {
    if (this.shown !== undefined) {
      this.shown = undefined;
      void vscode.commands.executeCommand("setContext", "dg-lsp.isNextEditShown", false);
      for (const editor of vscode.window.visibleTextEditors) {
        editor.setDecorations(this.place, []);
        editor.setDecorations(this.hint, []);
      }
    }
  }

  /** False if the document has changed or the editor refuses the edit. */
  private async make({ document, version, edit, range }: Shown): Promise<boolean> {
    const change = new vscode.WorkspaceEdit();
    change.replace(document.uri, range, edit.text);
    if (document.version !== version || !(await vscode.workspace.applyEdit(change))) {
      return false;
    }
    await this.session.execute(edit.command.command, edit.command.arguments[0]);
    return true;
  }
}

/**
 * The edit as an inline completion, or undefined. VS Code shows only changes of the cursor's line that begin at the cursor or
 * behind it and keep every character that they replace. Where only blanks precede the cursor, Tab indents, so there is none.
 */
function inlineItem({ document, version, edit, range, isThere }: Shown, cursor: vscode.Position): vscode.InlineCompletionItem | undefined {
  const isBehind = range.isSingleLine && range.start.line === cursor.line && range.start.isAfterOrEqual(cursor);
  if (!isBehind || isThere || document.version !== version || isIndenting(document, cursor) || !isGrown(document.getText(range), edit.text)) {
    return undefined;
  }
  const text = document.getText(new vscode.Range(cursor, range.start)) + edit.text;
  return new vscode.InlineCompletionItem(text, new vscode.Range(cursor, range.end), edit.command);
}

/** Whether only blanks precede the cursor. */
function isIndenting(document: vscode.TextDocument, cursor: vscode.Position): boolean {
  return !/\S/.test(document.lineAt(cursor.line).text.slice(0, cursor.character));
}

/** Whether a text became another one by insertions alone. */
function isGrown(old: string, text: string): boolean {
  let kept = 0;
  for (const character of text) {
    kept += old.startsWith(character, kept) ? character.length : 0;
  }
  return kept === old.length;
}

function asRange({ range: { start, end } }: Edit): vscode.Range {
  return new vscode.Range(start.line, start.character, end.line, end.character);
}
