/** What people call a job, in lists. Pure, and without imports that a browser lacks. */
import type { JobView } from '../contract/schema.ts';

/** What a job of `gitlab-executor` runs until its scripts come: it says nothing about the job. The program is in the variable. */
export const attendedCommand: readonly string[] = ['sh', '-c', 'eval "$ONEJOB_GITLAB"'];

/** The command that its user gave; empty for a job that its CI service keeps, or of which another program runs the scripts. */
export function commandText({ command }: Pick<JobView, 'command'>): string {
  const isAttended = command.length === attendedCommand.length && command.every((word, at) => word === attendedCommand[at]);
  return isAttended ? '' : command.join(' ');
}

/** In one line. Foreign text: make it printable. */
export function titleOf({ about, name, command, array }: Pick<JobView, 'about' | 'name' | 'command' | 'array'>): string {
  if (about !== null) return about.title;
  const text = commandText({ command });
  const parts = [name, text].filter((part) => part != null && part !== '');
  return `${array === undefined ? '' : `[${array.index}] `}${parts.join(': ')}`;
}
