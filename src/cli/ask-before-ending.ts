/** Asks a person at a terminal before their command ends jobs. The answer that ends nothing is the usual one. */
import type { Client } from '../api/client.ts';
import { wrongUsage } from './exit.ts';
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

/** `1 job of ada runs (3d 2h).`, with the longest time. `now`: wall clock, ms. */
export function runningText(running: readonly Running[], now: number): string {
  const users = [...new Set(running.flatMap(({ user }) => (user === null ? [] : [printable(user)])))];
  const named = users.length > 3 ? `${plural(users.length, 'user')}` : users.join(', ');
  const of = users.length === 0 ? '' : ` of ${named}`;
  const starts = running.flatMap(({ startedAt }) => (startedAt === null ? [] : [startedAt]));
  const longest = starts.length === 0 ? '' : ` (${running.length > 1 ? 'up to ' : ''}${formatAge(now - Math.min(...starts))})`;
  return `${plural(running.length, 'job')}${of} ${running.length === 1 ? 'runs' : 'run'}${longest}.`;
}

/** What `onejob down` asks about jobs that run, without its answers. */
export function fateQuestion(running: readonly Running[], now: number): string {
  return `${runningText(running, now)} What becomes of ${running.length === 1 ? 'it' : 'them'}?`;
}

/** What each answer to `fateQuestion` does. */
export function fates(jobs: number): Readonly<Record<'leave' | 'drain' | 'end', string>> {
  const [they, them] = jobs === 1 ? ['it continues', 'it'] : ['they continue', 'them'];
  return { leave: `leave (${they} without a daemon)`, drain: `drain (wait for ${them})`, end: 'end' };
}

export interface Choice<W extends string> {
  readonly text: string;
  /** Words, or beginnings of them. The first is the usual answer. */
  readonly words: readonly [W, ...W[]];
  /** How the words are shown; default: as they are. */
  readonly shown?: Readonly<Record<W, string>>;
  /** That asks, such as `down`. */
  readonly command: string;
}

/** @throws Interrupted; OnejobError E_USAGE when the input ends */
export async function askFor<W extends string>({ context }: Session, { text, words, shown, command }: Choice<W>): Promise<W> {
  const closed = wrongUsage(
    'The input ended before the question was answered; nothing was changed.',
    `Answer it, or give the answer as an option: see "onejob ${command} --help".`,
  );
  using person = openPerson(context.stdin(), context.stderr, closed);
  return await person.ask({
    text: `${text} ${words.map((word) => shown?.[word] ?? word).join(', ')}`,
    usual: words[0],
    read(typed) {
      const [found, ...others] = words.filter((word) => word.startsWith(typed.toLowerCase()));
      return found === undefined || others.length > 0 ? { again: `Type ${words.join(' or ')}.` } : { value: found };
    },
  });
}
