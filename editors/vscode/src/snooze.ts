/** A pause of automatic completions in this window. */

import * as vscode from "vscode";

const MINUTES = [5, 15, 60];

export class Snooze implements vscode.Disposable {
  private end: Date | undefined;
  private timer: NodeJS.Timeout | undefined;
  private readonly changes = new vscode.EventEmitter<void>();

  /** A pause began or ended. */
  readonly onChange = this.changes.event;

  /** When the current pause ends; undefined without one. */
  get until(): Date | undefined {
    return this.end;
  }

  /** Lets the user choose how long the pause is, or end the current one. */
  async choose(): Promise<void> {
    const durations = MINUTES.map((minutes) => ({ label: `${minutes} minutes`, minutes }));
    const items = this.end === undefined ? durations : [{ label: "End the snooze", minutes: 0 }, ...durations];
    const choice = await vscode.window.showQuickPick(items, { title: "Snooze Completions" });
    if (choice !== undefined) {
      this.set(choice.minutes);
    }
  }

  /** Begins a pause in place of the current one; 0 minutes: ends it. */
  set(minutes: number): void {
    clearTimeout(this.timer);
    this.end = minutes > 0 ? new Date(Date.now() + 60_000 * minutes) : undefined;
    this.timer = minutes > 0 ? setTimeout(() => this.set(0), 60_000 * minutes) : undefined;
    this.changes.fire();
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.changes.dispose();
  }
}
