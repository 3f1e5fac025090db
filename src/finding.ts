/** A finding of `doctor`. `error` means that jobs cannot run because of it. */
export interface Finding {
  readonly level: 'ok' | 'warning' | 'error';
  readonly subject: string;
  readonly message: string;
  /** What to do about it; null if there is nothing to do. */
  readonly hint: string | null;
}

export function fine(subject: string, message: string): Finding {
  return { level: 'ok', subject, message, hint: null };
}

export function problem(subject: string, message: string, hint: string | null = null): Finding {
  return { level: 'error', subject, message, hint };
}

export function warning(subject: string, message: string, hint: string | null = null): Finding {
  return { level: 'warning', subject, message, hint };
}

export function failure(subject: string, message: string, hint: string): Finding {
  return { level: 'error', subject, message, hint };
}
