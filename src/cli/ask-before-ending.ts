/** Asks a person at a terminal before their command ends jobs. The answer that ends nothing is the usual one. */
import type { Client } from '../api/client.ts';
import { openPerson } from './init/ask.ts';
import type { Session } from './session.ts';
import { formatAge, plural, printable } from './text.ts';

/** A job that runs. */
export interface Running {
  readonly user: string | null;
  /** Wall clock, ms since the epoch; null: unknown. */
  readonly startedAt: number | null;
}

/** Whether a person is there to answer: scripts are never asked. */
export function isAsked({ context, output }: Session): boolean {
  return !output.json && context.stdin().isTTY === true && context.stderr.isTTY === true;
}

/** Jobs that have an agent, of every CI service. */
export async function runningJobs(client: Pick<Client, 'jobs'>): Promise<Running[]> {
  const jobs = await client.jobs({ all: false, pool: null });
  return jobs
    .filter(({ state }) => state !== 'waiting' && state !== 'queued')
    .map(({ user = null, startedAt }) => ({ user, startedAt }));
}

/** `1 job of ada runs (3d 2h). End it?`, with the longest time. `now`: wall clock, ms. */
export function endingQuestion(running: readonly Running[], now: number): string {
  const users = [...new Set(running.flatMap(({ user }) => (user === null ? [] : [printable(user)])))];
  const named = users.length > 3 ? `${plural(users.length, 'user')}` : users.join(', ');
  const of = users.length === 0 ? '' : ` of ${named}`;
  const starts = running.flatMap(({ startedAt }) => (startedAt === null ? [] : [startedAt]));
  const longest = starts.length === 0 ? '' : ` (${running.length > 1 ? 'up to ' : ''}${formatAge(now - Math.min(...starts))})`;
  const [verb, them] = running.length === 1 ? ['runs', 'it'] : ['run', 'them'];
  return `${plural(running.length, 'job')}${of} ${verb}${longest}. End ${them}?`;
}

/** The first of `words` is the usual answer. @throws Interrupted */
export async function askFor<W extends string>({ context }: Session, text: string, words: readonly [W, ...W[]]): Promise<W> {
  using person = openPerson(context.stdin(), context.stderr);
  return await person.ask({
    text: `${text} ${words.join(', ')}`,
    usual: words[0],
    read(typed) {
      const found = words.find((word) => word === typed);
      return found === undefined ? { again: `Type ${words.join(' or ')}.` } : { value: found };
    },
  });
}
