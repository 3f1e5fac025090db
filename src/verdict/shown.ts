/** How people find a job, and what they are shown of its verdict. Pure, and without imports that a browser lacks. */
import type { JobView } from '../contract/schema.ts';
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

/** Whether a text, in any case, is in a job's id, name, user or command, or in what its CI service says about it. */
export function jobHas({ id, name, user, command, about }: JobView, text: string): boolean {
  const service = about === null ? [] : [about.title, about.branch, about.repository];
  const all = [id, name, user, command.join(' '), ...service].filter((part) => part != null);
  return all.join('\n').toLowerCase().includes(text.toLowerCase());
}
