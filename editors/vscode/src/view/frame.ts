/** One denoising step: the parameters of the notification `dg-lsp/denoising`. */
export interface Frame {
  uri: string;
  step: number;
  block: number;
  /** Frozen cells are code of the file between two gaps. */
  cells: { text: string; confidence: number; isCommitted: boolean; isEnd: boolean; isFrozen?: boolean }[];
}
