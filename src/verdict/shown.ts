/** What people are shown of a verdict, by the command line and the dashboard. Pure, and without imports that a browser lacks. */
import type { Verdict } from '../contract/verdict.ts';

/** How reasons word some of the evidence. */
const wordings: readonly (readonly [RegExp, string])[] = [
  [/^exit code (.*)$/, 'exited with $1'],
  [/^signal (.*)$/, 'ended by $1'],
  [/^result (.*)$/, 'reports "$1"'],
  [/^agent lost$/, 'agent was lost'],
];

/** The evidence without what the reason says already. */
export function newEvidence({ why, evidence }: Pick<Verdict, 'why' | 'evidence'>): string[] {
  const isSaid = (line: string): boolean =>
    why.includes(line) || wordings.some(([pattern, words]) => pattern.test(line) && why.includes(line.replace(pattern, words)));
  return evidence.filter((line) => !isSaid(line));
}
