/** The view of the denoising steps. The server reports steps only while it is visible. */

import { randomBytes } from "node:crypto";
import * as vscode from "vscode";
import type { Frame } from "./view/frame";

export class Denoising implements vscode.Disposable {
  private panel: vscode.WebviewPanel | undefined;

  /** `watch` reports to the server whether the view is visible. */
  constructor(
    private readonly extensionUri: vscode.Uri,
    private readonly watch: (on: boolean) => void,
  ) {}

  get isVisible(): boolean {
    return this.panel?.visible ?? false;
  }

  show(): void {
    if (this.panel !== undefined) {
      this.panel.reveal(undefined, true);
      return;
    }
    const roots = ["dist", "media"].map((name) => vscode.Uri.joinPath(this.extensionUri, name));
    const column = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
    const options = { enableScripts: true, localResourceRoots: roots };
    const panel = vscode.window.createWebviewPanel("dg-lsp.denoising", "Denoising", column, options);
    panel.iconPath = vscode.Uri.joinPath(this.extensionUri, "media", "icon.png");
    panel.onDidChangeViewState(() => this.watch(panel.visible));
    panel.onDidDispose(() => {
      this.panel = undefined;
      this.watch(false);
    });
    panel.webview.html = this.page(panel.webview);
    this.panel = panel;
    this.watch(true);
  }

  /** Draws one denoising step. */
  draw(frame: Frame): void {
    void this.panel?.webview.postMessage(frame);
  }

  dispose(): void {
    this.panel?.dispose();
  }

  /** The page shows output of a model, so it accepts scripts and styles only from this extension. */
  private page(webview: vscode.Webview): string {
    const nonce = randomBytes(16).toString("base64");
    const at = (...parts: string[]) => webview.asWebviewUri(vscode.Uri.joinPath(this.extensionUri, ...parts));
    return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src ${webview.cspSource}; script-src 'nonce-${nonce}'">
<link rel="stylesheet" href="${at("media", "denoising.css")}">
<title>Denoising</title>
</head>
<body>
<header><span id="file"></span><span id="step"></span></header>
<div id="canvas"></div>
<p id="hint">Type in a file that dg-lsp completes: each pass of the model is drawn here, uncertain tokens faint,
accepted ones framed.</p>
<p id="no-canvas" hidden>Decoded token by token: auto takes the faster decoder. To see a canvas, set
dg-lsp.completion.decoder to diffusion.</p>
<script nonce="${nonce}" src="${at("dist", "view.js")}"></script>
</body>
</html>`;
  }
}
