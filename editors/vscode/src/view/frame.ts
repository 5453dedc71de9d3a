/** One denoising step, as the server's notification `dg-lsp/denoising` says it. */
export interface Frame {
  uri: string;
  step: number;
  block: number;
  cells: { text: string; confidence: number; isCommitted: boolean; isEnd: boolean }[];
}
