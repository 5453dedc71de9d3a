/** The server process and its client. A server that ends is started again, and the client opens its documents again. */

import * as fs from "node:fs";
import * as os from "node:os";
import * as vscode from "vscode";
import type {
  ApplyWorkspaceEditParams,
  ClientCapabilities,
  CloseHandlerResult,
  LanguageClientOptions,
  StaticFeature,
} from "vscode-languageclient/node";
import {
  CancellationToken,
  CloseAction,
  ErrorAction,
  LanguageClient,
  State,
  TextDocumentEdit,
} from "vscode-languageclient/node";
import { findExecutable } from "./executable";
import type { Installation } from "./installation";
import { documentSelector, isSelected, serverOptions } from "./options";
import type { Preview } from "./preview";
import type { Status, StatusBar } from "./status";
import type { Frame } from "./view/frame";

export const ASK = "dg-lsp.askInstruction";
export const ASK_TEST = "dg-lsp.askTest";

const SHOW_TEXT = "Show the Completion";
const SHOW_LOG = "Show Log";

/** The answer to `dg-lsp/why`. */
interface Explanation {
  sentence: string;
  /** Of the completion, shown or not; may be empty. */
  text: string;
  nextEdit: string;
}

/** Seconds before the first, second, ... restart within `WITHIN_MS`. */
const PAUSES_S = [0, 0, 0, 1, 2, 5, 15, 30];
const WITHIN_MS = 180_000;

/** Declares that this editor can prompt for a line of text. */
const PROMPT_FEATURE: StaticFeature = {
  fillClientCapabilities(capabilities: ClientCapabilities) {
    const declared = { dgLsp: { commands: [ASK, ASK_TEST] } };
    capabilities.experimental = { ...(capabilities.experimental as object | undefined), ...declared };
  },
  initialize() {},
  getState: () => ({ kind: "static" }),
  clear() {},
};

/** Errors go to the log: without a server, there would be a notification for every key. The status bar shows the state. */
class QuietClient extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

export class Session {
  private client: LanguageClient | undefined;
  private turn: Promise<unknown> = Promise.resolve();
  private exits: number[] = [];
  /** A start was tried; the status bar shows whether it succeeded. */
  hasStarted = false;
  private readonly frames = new vscode.EventEmitter<Frame>();
  private readonly starts = new vscode.EventEmitter<void>();

  /** No program was found. */
  get isMissing(): boolean {
    return this.hasStarted && this.client === undefined;
  }

  /** A denoising step, while the denoising view is visible. */
  readonly onFrame = this.frames.event;
  /** A server runs: the first one, or one after a restart. */
  readonly onStart = this.starts.event;

  constructor(
    private readonly extension: vscode.Extension<unknown>,
    private readonly log: vscode.LogOutputChannel,
    private readonly statusBar: StatusBar,
    private readonly preview: Preview,
    private readonly installation: Installation,
  ) {}

  /** Replaces the running server; false if dg-lsp is not installed. Concurrent starts run one after the other. */
  start(): Promise<boolean> {
    this.hasStarted = true;
    if (this.client?.state === State.Starting) {
      void this.stop(); // a program that never answers must not keep later starts from running
    }
    const started = this.turn
      .then(() => this.replace())
      .catch((error: unknown) => {
        // shown here: a start that fails, as with a path of a wrong type, must not keep later ones from running
        this.statusBar.setError(`The server could not be started: ${error instanceof Error ? error.message : error}`);
        return true;
      });
    this.turn = started;
    return started;
  }

  async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    // a server that has ended cannot be shut down
    await client?.dispose().catch((error: unknown) => this.log.warn(`stopping: ${error}`));
  }

  /** Runs a command of the server for the selection of the active editor. */
  async executeAtSelection(command: string, more: object = {}): Promise<void> {
    const [client, editor] = this.active();
    if (client === undefined || editor === undefined) {
      return;
    }
    const convert = client.code2ProtocolConverter;
    const position = convert.asPosition(editor.selection.active);
    const range = convert.asRange(editor.selection);
    await this.execute(command, { uri: convert.asUri(editor.document.uri), position, range, ...more });
  }

  /** Shows what an automatic completion does at the cursor, and why nothing is shown. */
  async explain(): Promise<void> {
    const [client, editor] = this.active();
    if (client === undefined || editor === undefined) {
      return;
    }
    const reason = this.statusBar.reason(editor.document);
    if (reason) {
      void vscode.window.showInformationMessage(`dg-lsp: ${reason}`);
      return;
    }
    const convert = client.code2ProtocolConverter;
    const textDocument = { uri: convert.asUri(editor.document.uri) };
    const position = convert.asPosition(editor.selection.active);
    try {
      const { sentence, text, nextEdit } = await client.sendRequest<Explanation>("dg-lsp/why", { textDocument, position });
      const choice = await vscode.window.showInformationMessage(`dg-lsp: ${sentence} ${nextEdit}`, ...(text ? [SHOW_TEXT] : []));
      if (choice === SHOW_TEXT) {
        const language = editor.document.languageId;
        await vscode.window.showTextDocument(await vscode.workspace.openTextDocument({ language, content: text }));
      }
    } catch (error) {
      await this.reportFailure("dg-lsp/why", error);
    }
  }

  /** Runs a command of the server; the server reports the result to the user. */
  async execute(command: string, argument: object | string): Promise<void> {
    try {
      await this.client?.sendRequest("workspace/executeCommand", { command, arguments: [argument] });
    } catch (error) {
      await this.reportFailure(command, error);
    }
  }

  /** Whether automatic completions are on in a document. */
  isAutomatic(document: vscode.TextDocument): boolean {
    return this.client?.state === State.Running && isSelected(document) && !this.statusBar.reason(document);
  }

  /** Sends a request about the cursor of an editor; undefined without a server or an answer, which is shown unless `quiet`. */
  async request<Answer>(method: string, editor: vscode.TextEditor, more: object, quiet: boolean): Promise<Answer | undefined> {
    const client = quiet ? this.client : this.active()[0];
    if (client === undefined) {
      return undefined;
    }
    const convert = client.code2ProtocolConverter;
    const textDocument = { uri: convert.asUri(editor.document.uri), version: editor.document.version };
    const position = convert.asPosition(editor.selection.active);
    try {
      return await client.sendRequest<Answer>(method, { textDocument, position, ...more });
    } catch (error) {
      await (quiet ? this.log.warn(`${method}: ${error}`) : this.reportFailure(method, error));
      return undefined;
    }
  }

  /** Sends a notification if the server runs. */
  notify(method: string, params: object): void {
    if (this.client?.state === State.Running) {
      this.client.sendNotification(method, params).catch((error: unknown) => this.log.warn(`${method}: ${error}`));
    }
  }

  /** Shows that a request of the user failed. */
  private async reportFailure(name: string, error: unknown): Promise<void> {
    this.log.error(`${name}: ${error}`);
    const reason = error instanceof Error ? error.message : String(error);
    if ((await vscode.window.showErrorMessage(`dg-lsp: the command failed: ${reason}`, SHOW_LOG)) !== undefined) {
      this.log.show();
    }
  }

  /** The running client and the active editor; a missing one is reported to the user. */
  private active(): [LanguageClient | undefined, vscode.TextEditor | undefined] {
    const editor = vscode.window.activeTextEditor;
    if (this.client === undefined || editor === undefined) {
      void vscode.window.showWarningMessage(editor ? "dg-lsp is not running: the status bar shows the reason." : "dg-lsp: open a file first.");
    }
    return [this.client, editor];
  }

  private async replace(): Promise<boolean> {
    await this.stop();
    const command = findExecutable() ?? this.installation.executable;
    if (command === undefined) {
      this.statusBar.setError("dg-lsp is not installed: run the command Install the Server, or set dg-lsp.server.path.");
      return false;
    }
    this.statusBar.setLoading();
    this.log.info(`starting ${command}`);
    const server = { command, args: ["lsp", "--stdio"], options: { cwd: this.neutralFolder() } };
    const client = new QuietClient("dg-lsp", "dg-lsp", server, this.options());
    this.client = client;
    client.registerFeature(PROMPT_FEATURE);
    client.onNotification("didChangeStatus", (status: Status) => this.statusBar.set(status));
    client.onNotification("dg-lsp/denoising", (frame: Frame) => this.frames.fire(frame));
    client.onDidChangeState(({ newState }) => client === this.client && this.followState(newState));
    try {
      await client.start();
    } catch (error) {
      this.statusBar.setError(`${command} could not be started: ${error instanceof Error ? error.message : error}`);
    }
    return true;
  }

  /** The server's working directory. In a workspace, a file such as `json.py` could be imported in place of Python's own. */
  private neutralFolder(): string {
    return fs.existsSync(os.homedir()) ? os.homedir() : this.extension.extensionPath;
  }

  private followState(state: State): void {
    if (state === State.Running) {
      this.starts.fire();
    } else if (state === State.Starting) {
      this.statusBar.setLoading();
    } else {
      this.statusBar.setError("The server has stopped.");
    }
  }

  /** Restarts a server that ended, after growing pauses if it ends repeatedly. */
  private async restart(): Promise<CloseHandlerResult> {
    const now = Date.now();
    this.exits = [...this.exits.filter((time) => now - time < WITHIN_MS), now];
    const pause = PAUSES_S[Math.min(this.exits.length, PAUSES_S.length) - 1] ?? 0;
    if (pause > 0) {
      this.statusBar.setError(`The server ended and is started again in ${pause} s.`);
    }
    // also without a pause: a start that failed has to be over
    await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
    return { action: CloseAction.Restart, handled: true };
  }

  private options(): LanguageClientOptions {
    return {
      documentSelector: documentSelector(),
      initializationOptions: () => serverOptions(this.extension),
      outputChannel: this.log,
      initializationFailedHandler: () => false,
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue }),
        closed: () => this.restart(),
      },
      middleware: {
        provideInlineCompletionItems: (document, position, context, token, next) => {
          const isAutomatic = context.triggerKind === vscode.InlineCompletionTriggerKind.Automatic;
          return isAutomatic && this.statusBar.reason(document) ? undefined : next(document, position, context, token);
        },
        workspace: {
          handleApplyEdit: async (params, next) => {
            const failureReason = await this.confirm(params);
            return failureReason === undefined
              ? next(unannotated(params), CancellationToken.None)
              : { applied: false, failureReason };
          },
        },
      },
    };
  }

  /** Shows an edit that needs confirmation. Returns why it was not accepted, or undefined if it may be applied. */
  private async confirm({ edit, label }: ApplyWorkspaceEditParams): Promise<string | undefined> {
    const needsConfirmation = Object.values(edit.changeAnnotations ?? {}).some((annotation) => annotation.needsConfirmation);
    const [change, ...others] = edit.documentChanges ?? [];
    const convert = this.client?.protocol2CodeConverter;
    if (convert === undefined || !needsConfirmation || others.length > 0 || !TextDocumentEdit.is(change)) {
      return undefined;
    }
    const uri = convert.asUri(change.textDocument.uri).toString();
    const document = vscode.workspace.textDocuments.find((candidate) => candidate.uri.toString() === uri);
    const edits = await convert.asTextEdits(change.edits.filter((item) => "newText" in item));
    return document && this.preview.confirm(document, edits, label ?? "dg-lsp");
  }
}

/** Removes the confirmation from an edit that the user has accepted, so that the editor does not prompt again. */
function unannotated(params: ApplyWorkspaceEditParams): ApplyWorkspaceEditParams {
  const confirmed = { label: "dg-lsp", needsConfirmation: false };
  const { changeAnnotations = {} } = params.edit;
  const annotations = Object.fromEntries(Object.keys(changeAnnotations).map((name) => [name, confirmed]));
  return { ...params, edit: { ...params.edit, changeAnnotations: annotations } };
}
