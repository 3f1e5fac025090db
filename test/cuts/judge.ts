/** What must be true of a host after power cuts and reboots, of what clients and scripts have seen and of what is there. Pure. */
import type { JobView } from '../../src/contract/schema.ts';

/** What `inside/look.ts` finds at rest. */
export interface Look {
  /** Why it does not come to rest; null when it has. */
  readonly restless: string | null;
  readonly jobs: readonly JobView[];
  readonly things: readonly { readonly kind: string; readonly id: string; readonly detail: string }[];
  /** Where it could not look. */
  readonly blind: readonly string[];
  readonly integrity: string;
  /** How often systemd has started the service again since the boot. */
  readonly restarts: number;
  /** What the kernel said of a bad disk. */
  readonly disk: readonly string[];
}

/** A line of what `inside/load.ts` tells: what a client was told. */
export type Told =
  | { readonly accepted: string; readonly pool: string; readonly id: string; readonly expected: number }
  | { readonly ended: string; readonly pool: string; readonly code: number; readonly expected: number }
  | { readonly told: string; readonly result: unknown };

/** A job as whoever handed it in sees it in the end. `token`: what its script writes. */
export interface Seen {
  readonly token: string;
  readonly pool: string;
  /** `open`: it has no end. Another text: a result that such a job must not have. */
  readonly end: number | 'lost' | 'open' | (string & {});
  /** The code of its script; null when nobody was told that the job was accepted. */
  readonly expected: number | null;
  /** Whoever waited for it at a terminal may have cancelled it: a reboot in order ends their command. */
  readonly isAttended?: boolean;
}

export interface Story {
  readonly told: readonly Told[];
  /** Jobs of CI services, as those see them. */
  readonly services: readonly Seen[];
  /** Power cuts and reboots so far. */
  readonly interruptions: number;
  /** By pool. */
  readonly agents: Readonly<Record<string, number>>;
  /** What all scripts have written. */
  readonly evidence: string;
  /** Before the first cut. */
  readonly before: Look;
}

/** How many of something begin with it. */
type Counts = ReadonlyMap<string, number>;

function count(words: Iterable<string>): Counts {
  const found = new Map<string, number>();
  for (const word of words) found.set(word, (found.get(word) ?? 0) + 1);
  return found;
}

const marks = (evidence: string, mark: 'start' | 'end'): Counts =>
  count([...evidence.matchAll(new RegExp(`^${mark} (\\S+)$`, 'gm'))].map(([, token = '']) => token));

/** Jobs of the own queue, from the daemon's list. */
export function ownJobs(jobs: readonly JobView[], told: readonly Told[]): Seen[] {
  const expected = new Map(told.flatMap((one) => ('accepted' in one ? [[one.accepted, one.expected] as const] : [])));
  return jobs
    .filter(({ name }) => (name ?? null) !== null)
    .map(({ name, pool, state, result }) => {
      const token = name ?? '';
      const end = state !== 'done' || result === null ? 'open' : result.kind === 'code' ? result.code : result.kind;
      return { token, pool, end, expected: expected.get(token) ?? null, isAttended: token.includes('-person-') };
    });
}

/** A sentence for everything that is wrong. */
export function judge(story: Story, look: Look): string[] {
  const own = ownJobs(look.jobs, story.told);
  const seen = [...own, ...story.services];
  return [
    ...(look.restless === null ? [] : [`The host does not come to rest: ${look.restless}.`]),
    ...scripts(seen, story.evidence),
    ...listed(story.told, look.jobs),
    ...results(seen, story),
    ...stood(story.told, look.jobs),
    ...left(story.before, look),
    ...(look.integrity === 'ok' ? [] : [`The database is damaged: ${look.integrity}.`]),
    ...(look.restarts === 0 ? [] : [`systemd has started the service ${look.restarts} times again since the boot.`]),
    ...look.disk.map((line) => `The kernel says: ${line}.`),
    ...look.blind.map((why) => `The census ${why}.`),
  ];
}

/** No script runs twice, and none whose job nobody lists. */
function scripts(seen: readonly Seen[], evidence: string): string[] {
  const known = new Set(seen.map(({ token }) => token));
  return [...marks(evidence, 'start')].flatMap(([token, times]) => [
    ...(times === 1 ? [] : [`The script of ${token} ran ${times} times.`]),
    ...(known.has(token) ? [] : [`The script of ${token} ran, and no job of that name is listed.`]),
  ]);
}

/** Each accepted job is listed once. */
function listed(told: readonly Told[], jobs: readonly JobView[]): string[] {
  const times = count(jobs.map(({ id }) => id));
  const twice = [...times].filter(([, many]) => many > 1).map(([id, many]) => `${id} is listed ${many} times.`);
  const missing = told.flatMap((one) =>
    'accepted' in one && !times.has(one.id) ? [`${one.accepted} (${one.id}) was accepted and is not listed.`] : [],
  );
  return [...twice, ...missing];
}

/** Each job has an end, and the right one: a cut loses no more jobs than there are agents. */
function results(seen: readonly Seen[], { evidence, agents, interruptions }: Story): string[] {
  const [starts, ends] = [marks(evidence, 'start'), marks(evidence, 'end')];
  const wrong = seen.flatMap(({ token, end, expected, isAttended = false }): string[] => {
    if (end === 'lost' || (end === 'cancelled' && isAttended)) return [];
    if (end === 'open') return [`${token} has no end.`];
    if (typeof end === 'string') return [`${token} ended with "${end}".`];
    if (expected !== null && end !== expected) return [`${token} ended with code ${end} instead of ${expected}.`];
    const [began, ended] = [starts.get(token) ?? 0, ends.get(token) ?? 0];
    return ended > 0
      ? []
      : [`${token} has the code ${end}, and its script ${began > 0 ? 'did not reach its end' : 'never began'}.`];
  });
  const lost = count(seen.filter(({ end }) => end === 'lost').map(({ pool }) => pool));
  const many = [...lost].flatMap(([pool, jobs]) => {
    const most = (agents[pool] ?? 0) * interruptions;
    return jobs <= most ? [] : [`${jobs} jobs of ${pool} are lost: ${interruptions} interruptions cannot lose more than ${most}.`];
  });
  return [...wrong, ...many];
}

/** What somebody was told still stands. */
function stood(told: readonly Told[], jobs: readonly JobView[]): string[] {
  const byId = new Map(jobs.map((job) => [job.id, job.result]));
  const byName = new Map(jobs.map((job) => [job.name ?? '', job.result]));
  return told.flatMap((one): string[] => {
    if ('told' in one) {
      const now = JSON.stringify(byId.get(one.told) ?? null);
      const then = JSON.stringify(one.result);
      return now === then ? [] : [`The result of ${one.told} was ${then}, and is ${now}.`];
    }
    if (!('ended' in one)) return [];
    const now = byName.get(one.ended) ?? null;
    if (one.code !== one.expected) return [`A client saw ${one.ended} end with code ${one.code} instead of ${one.expected}.`];
    if (now?.kind === 'code' && now.code === one.code) return [];
    return [`A client saw ${one.ended} end with code ${one.code}, and now its result is ${JSON.stringify(now)}.`];
  });
}

/** At rest there is as much of everything as before. */
function left(before: Look, now: Look): string[] {
  const [then, here] = [before, now].map(({ things }) => count(things.map(({ kind }) => kind)));
  return [...new Set([...(then?.keys() ?? []), ...(here?.keys() ?? [])])].flatMap((kind) => {
    const [was, is] = [then?.get(kind) ?? 0, here?.get(kind) ?? 0];
    const ids = now.things.filter((one) => one.kind === kind).map(({ id, detail }) => `${id} (${detail})`);
    return was === is ? [] : [`There are ${is} of the kind ${kind} instead of ${was}: ${ids.join(', ')}.`];
  });
}
