/** The commands of the palette, the context menu and the status bar. */

import * as vscode from "vscode";
import type { Installation } from "./installation";
import { ASK, ASK_TEST, type Session } from "./session";
import type { Snooze } from "./snooze";

const REWRITE = "dg-lsp.rewrite";
const FIX_TEST = "dg-lsp.fixTest";

const STRENGTHS = [
  { label: "30 %", description: "keep most of it", strength: 0.3 },
  { label: "60 %", description: "keep some of it", strength: 0.6 },
  { label: "100 %", description: "keep nothing", strength: 1.0 },
];

/** The menu of the status bar; the settings are added at the end. */
const MENU = [
  ["$(circle-slash) Turn Completions On or Off", "dg-lsp.toggle"],
  ["$(bell-slash) Snooze Completions…", "dg-lsp.snooze"],
  ["$(edit) Rewrite Selection…", "dg-lsp.rewriteSelection"],
  ["$(beaker) Fix the Failing Test…", "dg-lsp.fixFailingTest"],
  ["$(symbol-snippet) Complete This Block", "dg-lsp.completeBlockHere"],
  ["$(arrow-right) Next Edit", "dg-lsp.nextEdit"],
  ["$(question) Why Is There Nothing?", "dg-lsp.why"],
  ["$(eye) Show Denoising", "dg-lsp.showDenoising"],
  ["$(refresh) Restart Server", "dg-lsp.restart"],
  ["$(output) Show Log", "dg-lsp.showLog"],
] as const;

/** Commands that need a selection. */
const OF_SELECTIONS = ["dg-lsp.rewriteSelection", "dg-lsp.fixFailingTest"];

/** Commands at the cursor. */
const OF_EDITORS = ["dg-lsp.completeBlockHere", "dg-lsp.nextEdit", "dg-lsp.why"];

export function registerCommands(
  session: Session,
  installation: Installation,
  snooze: Snooze,
  log: vscode.LogOutputChannel,
  showDenoising: () => void,
): vscode.Disposable[] {
  const start = async () => {
    const runs = (await session.start()) || ((await installation.offer()) && (await session.start()));
    if (runs && (await installation.update())) {
      await session.start();
    }
  };
  const commands: Record<string, (...args: never[]) => unknown> = {
    [ASK]: async (target: object) => {
      const instruction = await promptInstruction();
      return instruction === undefined ? undefined : session.execute(REWRITE, { ...target, instruction });
    },
    [ASK_TEST]: async (target: object) => {
      const test = await promptTest();
      return test === undefined ? undefined : session.execute(FIX_TEST, { ...target, test });
    },
    "dg-lsp.fixFailingTest": async () => {
      const test = await promptTest();
      return test === undefined ? undefined : session.executeAtSelection(FIX_TEST, { test });
    },
    "dg-lsp.rewriteSelection": async () => {
      const instruction = await promptInstruction();
      return instruction === undefined ? undefined : session.executeAtSelection(REWRITE, { instruction });
    },
    "dg-lsp.fillSelection": () => session.executeAtSelection(REWRITE, { strength: 1.0 }),
    "dg-lsp.regenerate": async () => {
      const title = "How much of the selection should be rewritten?";
      const choice = await vscode.window.showQuickPick(STRENGTHS, { title });
      return choice && session.executeAtSelection(REWRITE, { strength: choice.strength });
    },
    "dg-lsp.completeBlockHere": () => session.executeAtSelection("dg-lsp.completeBlock", { range: undefined }),
    "dg-lsp.toggle": () => (snooze.until === undefined ? toggle() : snooze.set(0)),
    "dg-lsp.snooze": () => snooze.choose(),
    "dg-lsp.restart": start,
    "dg-lsp.install": async () => (await installation.install()) && session.start(),
    "dg-lsp.showDenoising": showDenoising,
    "dg-lsp.why": () => session.explain(),
    "dg-lsp.showLog": () => log.show(),
    "dg-lsp.showMenu": showMenu,
  };
  return Object.entries(commands).map(([name, run]) => vscode.commands.registerCommand(name, run));
}

function promptInstruction(): Thenable<string | undefined> {
  return vscode.window.showInputBox({
    title: "Rewrite Selection",
    prompt: "How should the selected code change?",
    placeHolder: "for example: use a dict comprehension",
    validateInput: (text) => (text.trim() ? undefined : "Enter an instruction."),
  });
}

/** The last command that was entered in this window. */
let lastTest = "";

/** The command of the user's settings; without one the user enters it. No file of the workspace can choose it. */
async function promptTest(): Promise<string | undefined> {
  const chosen = vscode.workspace.getConfiguration("dg-lsp").get<string>("test.command", "");
  if (chosen) {
    return chosen;
  }
  const test = await vscode.window.showInputBox({
    title: "Fix the Failing Test",
    prompt: "Which command fails? It runs in a sandbox, in a copy of the folder.",
    placeHolder: "for example: pytest -q tests/test_app.py",
    value: lastTest,
    validateInput: (text) => (text.trim() ? undefined : "Enter a command."),
  });
  lastTest = test ?? lastTest;
  return test;
}

/**
 * Changes the value that decides in the active editor. One of its language goes before all others; otherwise, and among
 * those, the one of the folder goes before that of the workspace, and this one before the user's.
 */
async function toggle(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("dg-lsp", vscode.window.activeTextEditor?.document);
  const found = settings.inspect<boolean>("enable");
  const ofLanguage = [found?.workspaceFolderLanguageValue, found?.workspaceLanguageValue, found?.globalLanguageValue];
  const isOfLanguage = ofLanguage.some((value) => value !== undefined);
  const [ofFolder, ofWorkspace] = isOfLanguage ? ofLanguage : [found?.workspaceFolderValue, found?.workspaceValue];
  const { Global, Workspace, WorkspaceFolder } = vscode.ConfigurationTarget;
  const target = ofFolder !== undefined ? WorkspaceFolder : ofWorkspace !== undefined ? Workspace : Global;
  await settings.update("enable", !settings.get("enable", true), target, isOfLanguage);
}

async function showMenu(): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  const isPossible = (command: string) =>
    OF_SELECTIONS.includes(command) ? editor?.selection.isEmpty === false : editor !== undefined || !OF_EDITORS.includes(command);
  const items = MENU.map(([label, command]) => ({ label, command })).filter(({ command }) => isPossible(command));
  const choice = await vscode.window.showQuickPick([...items, { label: "$(gear) Settings", command: "" }], { title: "dg-lsp" });
  if (choice?.command) {
    await vscode.commands.executeCommand(choice.command);
  } else if (choice) {
    await vscode.commands.executeCommand("workbench.action.openSettings", "dg-lsp");
  }
}
