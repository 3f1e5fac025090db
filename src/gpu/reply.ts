/** What a GPU vendor's tool answered, live or in a recording. The meeting point of those who run tools and those who read them. */
export interface Reply {
  /** Name of the tool, such as `nvidia-smi`. */
  readonly tool: string;
  /** What it was asked; empty in a recording that does not say. */
  readonly args: readonly string[];
  /** Standard output, then standard error. NVIDIA's tool prints its complaints to the first. */
  readonly output: string;
  /** Exit code, 127 where there is no such tool; null when we ended it, or in a recording. */
  readonly code: number | null;
  /** It did not end in its time. What it said until then may be half of it. */
  readonly hung: boolean;
}

/** A text as the answer of a tool of which nothing else is known. */
export function recorded(output: string, args: readonly string[] = [], tool = 'nvidia-smi'): Reply {
  return { tool, args, output, code: null, hung: false };
}
