/** A finding of `doctor`. `error` means that jobs cannot run because of it. */
export interface Finding {
  readonly level: 'ok' | 'warning' | 'error';
  readonly subject: string;
  readonly message: string;
  /** What to do about it; null if there is nothing to do. */
  readonly hint: string | null;
  /** An error that may pass by itself, such as a cloud that does not answer. */
  readonly mayPass?: boolean;
}

const finding =
  (level: Finding['level']) =>
  (subject: string, message: string, hint: string | null = null): Finding => ({ level, subject, message, hint });

export const fine = finding('ok');
export const warning = finding('warning');
export const problem = finding('error');
