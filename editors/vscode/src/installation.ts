/** The server in an environment of this extension: installed on request from the wheel that the extension contains, and again when that changes. */

import { execFile } from "node:child_process";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import * as vscode from "vscode";
import { BIN, findExecutable, isExecutable, NAME, onPath } from "./executable";

const INSTALL = "Install";
const CHOOSE = "Choose…";
const UV = "https://docs.astral.sh/uv/getting-started/installation/";
const PYTHON = process.platform === "win32" ? "python.exe" : "python";
const IS_SUPPORTED = "import sys; sys.exit(sys.version_info < (3, 11))";

/** Contains the digest of the installed wheel; written last, so that an environment without it is incomplete. */
const MARK = "installed";
/** Environments that are kept: another window may still run the previous one. */
const KEPT = 2;

/** The two commands that make an environment with the wheel. */
type Recipe = [file: string, args: string[]][];

class NoInstallerError extends Error {}

export class Installation {
  private hasUpdated = false;

  /** `folder` is the storage of the extension, `wheel` the file with the server of the same version. */
  constructor(
    private readonly folder: string,
    private readonly wheel: string,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  /** The program of the newest environment, if there is one. */
  get executable(): string | undefined {
    return this.complete()
      .map((name) => this.program(name))
      .find(isExecutable);
  }

  /** Offers to install the server or to choose its path, whose setting starts it; true if it was installed. */
  async offer(): Promise<boolean> {
    const message = "dg-lsp is not installed: it is neither in the workspace's environment nor on PATH.";
    const choice = await vscode.window.showWarningMessage(message, INSTALL, CHOOSE);
    if (choice === CHOOSE) {
      await chooseExecutable();
    }
    return choice === INSTALL && this.install();
  }

  /** Installs again if the extension contains another wheel; once per window. True if it succeeded. */
  async update(): Promise<boolean> {
    const [newest] = this.complete();
    if (newest === undefined || this.hasUpdated || this.isCurrent(newest) || findExecutable() !== undefined) {
      return false;
    }
    this.hasUpdated = true;
    return this.install({ isUpdate: true });
  }

  /** Makes a new environment, with the output in the log; true if it succeeded. The previous one stays if it fails. */
  async install({ isUpdate = false } = {}): Promise<boolean> {
    const title = isUpdate ? "Updating dg-lsp" : "Installing dg-lsp; compiling llama.cpp may take some minutes";
    const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
    return vscode.window.withProgress(options, async (progress, token) => {
      const report = (message: string) => progress.report({ message });
      try {
        await this.locked(token, async () => {
          const [newest] = this.complete();
          if (!(isUpdate && newest !== undefined && this.isCurrent(newest))) {
            await this.build(report, token);
          }
        });
        return true;
      } catch (error) {
        if (!token.isCancellationRequested) {
          void this.reportError(error as Error);
        }
        return false;
      }
    });
  }

  /** The SHA-256 of the wheel, which was computed when the extension was packed. */
  private get digest(): string {
    return fs.readFileSync(`${this.wheel}.sha256`, "utf8");
  }

  private async build(report: (message: string) => void, token: vscode.CancellationToken): Promise<void> {
    const name = `server-${Date.now()}`;
    const target = path.join(this.folder, name);
    try {
      for (const [file, args] of await this.recipe(target)) {
        await this.run(file, args, report, token);
      }
      if (!isExecutable(this.program(name))) {
        throw new Error(`${this.wheel} has no program dg-lsp`);
      }
    } catch (error) {
      fs.rmSync(target, { recursive: true, force: true });
      throw error;
    }
    fs.writeFileSync(path.join(target, MARK), this.digest);
    this.removeOld();
  }

  private async recipe(target: string): Promise<Recipe> {
    const uv = onPath(process.platform === "win32" ? "uv.exe" : "uv");
    if (uv !== undefined) {
      return [
        [uv, ["venv", "--no-project", "--python", ">=3.11", target]],
        [uv, ["pip", "install", "--python", target, this.wheel]],
      ];
    }
    const python = await this.interpreter();
    return [
      [python, ["-m", "venv", target]],
      [path.join(target, BIN, PYTHON), ["-m", "pip", "install", "--disable-pip-version-check", this.wheel]],
    ];
  }

  /** The interpreter that the Python extension has selected, or that of PATH; a sufficiently new one. */
  private async interpreter(): Promise<string> {
    const candidates = [await selectedInterpreter(this.log), onPath("python3"), onPath(PYTHON)];
    for (const file of candidates) {
      if (file !== undefined && (await succeeds(file, ["-c", IS_SUPPORTED]))) {
        return file;
      }
    }
    throw new NoInstallerError("dg-lsp needs uv, or Python 3.11 or later, to be installed.");
  }

  private run(file: string, args: string[], report: (message: string) => void, token: vscode.CancellationToken): Promise<void> {
    this.log.info([file, ...args].join(" "));
    return new Promise((resolve, reject) => {
      // in the user's home: Python may import from the folder in which it starts
      const child = execFile(file, args, { cwd: os.homedir(), maxBuffer: 1 << 26 }, (error) => (error ? reject(error) : resolve()));
      const show = (text: string) => {
        this.log.info(text.trimEnd());
        report(text.trim().split("\n").at(-1)?.slice(0, 80) ?? "");
      };
      child.stdout?.on("data", show);
      child.stderr?.on("data", show);
      if (token.isCancellationRequested) {
        child.kill();
      }
      token.onCancellationRequested(() => child.kill());
    });
  }

  /** Runs one installation at a time: several windows update at once. */
  private async locked(token: vscode.CancellationToken, work: () => Promise<void>): Promise<void> {
    fs.mkdirSync(this.folder, { recursive: true });
    const lock = path.join(this.folder, "lock");
    while (!hasTaken(lock)) {
      if (token.isCancellationRequested) {
        throw new vscode.CancellationError();
      }
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    try {
      await work();
    } finally {
      fs.rmSync(lock, { force: true });
    }
  }

  /** The environments, the newest one first. */
  private complete(): string[] {
    const names = fs.existsSync(this.folder) ? fs.readdirSync(this.folder) : [];
    const isComplete = (name: string) => name.startsWith("server-") && fs.existsSync(path.join(this.folder, name, MARK));
    return names.filter(isComplete).sort().reverse();
  }

  private isCurrent(name: string): boolean {
    return fs.readFileSync(path.join(this.folder, name, MARK), "utf8") === this.digest;
  }

  private removeOld(): void {
    for (const name of this.complete().slice(KEPT)) {
      try {
        fs.rmSync(path.join(this.folder, name), { recursive: true, force: true });
      } catch (error) {
        this.log.warn(`${name} stays: ${error}`); // Windows keeps programs that run
      }
    }
  }

  private program(name: string): string {
    return path.join(this.folder, name, BIN, NAME);
  }

  private async reportError(error: Error): Promise<void> {
    this.log.error(error.message);
    if (error instanceof NoInstallerError) {
      if ((await vscode.window.showErrorMessage(error.message, "How to get uv")) !== undefined) {
        await vscode.env.openExternal(vscode.Uri.parse(UV));
      }
      return;
    }
    if ((await vscode.window.showErrorMessage("dg-lsp could not be installed.", "Show Log")) !== undefined) {
      this.log.show();
    }
  }
}

/** Creates the lock file; false if a process that runs has it. */
function hasTaken(lock: string): boolean {
  try {
    fs.writeFileSync(lock, `${process.pid}`, { flag: "wx" });
    return true;
  } catch {
    if (!isRunning(lock)) {
      fs.rmSync(lock, { force: true });
    }
    return false;
  }
}

function isRunning(lock: string): boolean {
  try {
    return process.kill(Number(fs.readFileSync(lock, "utf8")), 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/** What the Python extension has selected for the workspace; an untrusted workspace may contain a harmful program. */
async function selectedInterpreter(log: vscode.LogOutputChannel): Promise<string | undefined> {
  const extension = vscode.workspace.isTrusted ? vscode.extensions.getExtension<PythonApi>("ms-python.python") : undefined;
  try {
    const { environments } = (await extension?.activate()) ?? {};
    const environment = await environments?.resolveEnvironment(environments.getActiveEnvironmentPath());
    return environment?.executable.uri?.fsPath;
  } catch (error) {
    log.warn(`no interpreter from the Python extension: ${error}`);
    return undefined;
  }
}

/** The part of the API of ms-python.python that is used here. */
interface PythonApi {
  environments: {
    getActiveEnvironmentPath(): { id: string; path: string };
    resolveEnvironment(environment: { id: string; path: string }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
  };
}

function succeeds(file: string, args: string[]): Promise<boolean> {
  return new Promise((resolve) => execFile(file, args, { cwd: os.homedir() }, (error) => resolve(error === null)));
}

async function chooseExecutable(): Promise<void> {
  const [file] = (await vscode.window.showOpenDialog({ title: "Where is dg-lsp?", openLabel: "Use This" })) ?? [];
  if (file !== undefined) {
    const settings = vscode.workspace.getConfiguration("dg-lsp");
    await settings.update("server.path", file.fsPath, vscode.ConfigurationTarget.Global);
  }
}
