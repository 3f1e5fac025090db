/** Finding jobs by what people remember of them. Pure, and without imports that a browser lacks. */
import type { JobView } from '../contract/schema.ts';

/** Whether a text, in any case, is in a job's id, name, user or command, or in what its CI service says about it. */
export function jobHas({ id, name, user, command, about }: JobView, text: string): boolean {
  const service = about === null ? [] : [about.title, about.branch, about.repository];
  const all = [id, name, user, command.join(' '), ...service].filter((part) => part != null);
  return all.join('\n').toLowerCase().includes(text.toLowerCase());
}
