/** What `doctor` says of the loop itself: what keeps pools from starting jobs right now, and what a person can do about it. */
import type { FindingView } from '../api/schema.ts';
import type { Pool } from './pool.ts';
import type { Reconciler } from './reconciler.ts';

/** What is held for all pools is said once, not once for each. A runtime that is away is the runtime's own to tell. */
export function poolFindings(reconciler: Reconciler): FindingView[] {
  const host = reconciler.pause.details.map((held) =>
    warning('this host', `Nothing new is started: ${held.replace(/\.$/, '')}.`, null),
  );
  return [...host, ...reconciler.pools.flatMap(findingsOf)];
}

function findingsOf({ config: { name }, pause, draining, backoff }: Pool): FindingView[] {
  const subject = `pool ${name}`;
  const found = pause.details.map((held) => {
    const reason = held.replace(/^by /, '');
    const word = /^[\w.-]+$/.test(reason) ? reason : `'${reason.replaceAll("'", "'\\''")}'`;
    return warning(subject, `It is paused ${held}.`, `Type "onejob resume ${name} --reason ${word}".`);
  });
  // What left the config only empties itself, and nobody can resume it.
  if (draining && !name.endsWith('(leaving)'))
    found.push(warning(subject, 'It drains: nothing new is started.', `Type "onejob resume ${name}".`));
  if (backoff !== null) {
    const times = backoff.failures === 1 ? 'once' : `${backoff.failures} times in a row`;
    found.push(warning(subject, `It failed ${times} and waits before it tries again: ${backoff.last.message}`, null));
  }
  return found;
}

function warning(subject: string, message: string, hint: string | null): FindingView {
  return { level: 'warning', subject, message, hint };
}
