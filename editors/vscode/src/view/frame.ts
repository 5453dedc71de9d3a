/** One denoising step: the parameters of the notification `dg-lsp/denoising`. */
export interface Frame {
  uri: string;
  step: number;
  block: number;
  cells: { text: string; confidence: number; isCommitted: boolean; isEnd: boolean }[];
}
