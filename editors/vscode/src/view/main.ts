/** Draws frames in the webview: one row for each step of the newest completion. */

import type { Frame } from "./frame";

const byId = (id: string): HTMLElement => document.getElementById(id) as HTMLElement;

window.addEventListener("message", ({ data }: MessageEvent<Frame>) => {
  byId("hint").hidden = true;
  byId("file").textContent = fileName(data.uri);
  byId("step").textContent = data.block ? `canvas ${data.block + 1}, step ${data.step}` : `step ${data.step}`;
  if (data.step <= 1 && data.block === 0) {
    byId("canvas").replaceChildren();
    // a canvas begins with several positions
    byId("no-canvas").hidden = data.cells.length > 1;
  }
  const row = document.createElement("div");
  row.className = "row";
  row.replaceChildren(...data.cells.map(drawn));
  byId("canvas").append(row);
  row.scrollIntoView({ block: "nearest" });
});

/** Without the fragment, which names a cell of a notebook. */
function fileName(uri: string): string {
  return decodeURIComponent(uri.replace(/#.*/, "").replace(/.*[/:]/, ""));
}

function drawn(cell: Frame["cells"][number]): HTMLElement {
  const span = document.createElement("span");
  span.className = cell.isFrozen ? "cell frozen" : cell.isCommitted ? "cell committed" : "cell";
  if (cell.isEnd) {
    span.classList.add("end");
  }
  // the canvas has a fixed length, so an empty cell still needs a character
  span.textContent = cell.isEnd ? "∎" : cell.text.replaceAll("\n", "↵") || "·";
  span.style.opacity = String(0.35 + 0.65 * Math.min(Math.max(cell.confidence, 0), 1));
  span.title = `${Math.round(cell.confidence * 100)} %`;
  return span;
}
