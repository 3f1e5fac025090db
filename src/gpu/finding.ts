/** Findings about GPUs. A message may contain a tool's output, which may come from anyone. */
import type { GpuFinding, Inventory } from './inventory.ts';

/** Removes control characters from all of it, so that foreign text cannot move a terminal's cursor. */
export function finding(
  level: GpuFinding['level'],
  code: string,
  subject: string,
  message: string,
  hint: string | null = null,
): GpuFinding {
  return { level, code, subject: plain(subject), message: plain(message), hint: hint === null ? null : plain(hint) };
}

/** The same as a warning: another source read all GPUs, so nothing is unknown. */
export function asWarning(error: GpuFinding): GpuFinding {
  return { ...error, level: 'warning' };
}

/** `inventory` with more findings; not complete when `complete` is false. */
export function withFindings(inventory: Inventory, findings: readonly GpuFinding[], complete = true): Inventory {
  return { ...inventory, complete: inventory.complete && complete, findings: [...inventory.findings, ...findings] };
}

export function distinct(findings: readonly GpuFinding[]): GpuFinding[] {
  const seen = new Map(findings.map((each) => [`${each.code} ${each.subject} ${each.message}`, each]));
  return [...seen.values()];
}

/** Whether both only ask for the reset of one card: people need to read that once. */
export function isSameReset(one: Pick<GpuFinding, 'subject' | 'hint'>, other: Pick<GpuFinding, 'subject' | 'hint'>): boolean {
  const asks = ({ hint }: Pick<GpuFinding, 'hint'>) => hint?.includes('--gpu-reset') === true;
  return one.subject === other.subject && asks(one) && asks(other);
}

/** At most 120 letters, so that a finding stays one sentence whatever a tool printed. */
export function clip(text: string): string {
  const short = plain(text);
  return short.length <= 120 ? short : `${short.slice(0, 119)}…`;
}

/** The first three lines of what a tool printed instead of an answer; null when it printed nothing. */
export function ownWords(text: string): string | null {
  const lines = text.split('\n').flatMap((line) => (line.trim() === '' ? [] : [clip(line.trim())]));
  return lines.length === 0 ? null : `${lines.slice(0, 3).join(' / ')}${lines.length > 3 ? ' / …' : ''}`;
}

/** What a tool printed instead of an answer, as the end of a sentence. */
export function printed(text: string): string {
  const words = ownWords(text);
  return words === null ? 'nothing' : `something unexpected: "${words}"`;
}

export function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** Without control characters. Anyone who runs a process chooses its name, and a tool prints it as it is. */
export function plain(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is taken out
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, ' ');
}
