/** Answers, and errors as Google writes them. */

export interface Said {
  readonly status: number;
  readonly json: unknown;
  /** Instead of JSON. */
  readonly text?: string;
}

export const bodyOf = ({ json, text }: Said): string => text ?? JSON.stringify(json);

export function refused(status: number, reason: string, message: string, details?: readonly unknown[]): Said {
  const error = { code: status, message, errors: [{ message, domain: 'global', reason }] };
  return { status, json: { error: { ...error, ...(details === undefined ? {} : { details }) } } };
}
