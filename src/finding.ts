/** One thing `doctor` found. `level: 'error'` means that it keeps jobs from running. */
export interface Finding {
  readonly level: 'ok' | 'warning' | 'error';
  readonly subject: string;
  readonly message: string;
  /** What to do about it; null when there is nothing to do. */
  readonly hint: string | null;
}

export function fine(subject: string, message: string): Finding {
  return { level: 'ok', subject, message, hint: null };
}

export function warning(subject: string, message: string, hint: string | null = null): Finding {
  return { level: 'warning', subject, message, hint };
}

export function failure(subject: string, message: string, hint: string): Finding {
  return { level: 'error', subject, message, hint };
}
