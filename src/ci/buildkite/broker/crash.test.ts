/** The broker is killed at every line that it writes, before and after: whatever the service was told, nothing stays undone. */
import { describe, expect, it } from 'vitest';
import { scratch } from '../../../../test/support/scratch.ts';
import type { Book } from './book.ts';
import { type Running, say, slotOffer, type World, world } from './testing.ts';

/** A book whose broker is killed at its `nth` write; afterwards it can do nothing any more. */
function killedAt(nth: number, when: 'before' | 'after', killed: () => void) {
  let count = 0;
  let isDead = false;
  const write = <T>(fn: () => T): T => {
    if (isDead) throw new Error('killed');
    count += 1;
    if (count !== nth) return fn();
    isDead = true;
    try {
      if (when === 'after') fn();
    } finally {
      killed();
    }
    throw new Error('killed');
  };
  return (book: Book): Book => ({
    ...book,
    add: (record) => write(() => book.add(record)),
    update: (id, patch, lazily) => write(() => book.update(id, patch, lazily)),
  });
}

/** What the manager would do with each agent, as often as it looks. */
type Manage = (running: Running) => void;

const refuse: Manage = ({ book, control }) => {
  for (const { shown } of book.all()) {
    if (shown.phase === 'accepted') control.refuse(shown.id, { reason: 'not for forks', signalReason: 'agent_refused' });
  }
};

const run: Manage = ({ book, control }) => {
  for (const { shown } of book.all()) {
    const { id, phase } = shown;
    if (phase === 'accepted') control.hand(id, { agent: 'a1', trusted: true, secrets: [{ name: 'KEY', value: 'secret-canary' }] });
    // What the agent inside does, up to where it is lost.
    if (phase === 'handed') book.update(id, { shown: { phase: 'connected' } });
    if (phase === 'connected') control.end(id, { reason: 'the sandbox is gone', signalReason: 'process_run_error' });
  }
};

async function play(manage: Manage, nth: number, when: 'before' | 'after') {
  using folder = scratch();
  const stage: World = world(folder.path);
  const { service, pass, settle } = stage;
  const job = service.add('job-1');
  let dying: Promise<void> | null = null;
  const mortal: Running = stage.start({
    wrap: killedAt(nth, when, () => {
      dying ??= Promise.resolve().then(() => mortal.kill());
    }),
  });
  const drive = async (running: Running, seconds: number): Promise<void> => {
    for (let at = 0; at < seconds && (dying === null || running !== mortal); at += 1) {
      try {
        manage(running);
      } catch (error) {
        if (!(error instanceof Error) || error.message !== 'killed') throw error;
      }
      await pass(1_000);
    }
  };
  say(mortal, [slotOffer]);
  await drive(mortal, 8);
  await settle();
  if (dying === null) {
    await mortal.kill();
    return { job, isWhole: true, service };
  }
  await dying;
  const next = stage.start();
  say(next, [slotOffer]);
  await drive(next, 70);
  const phases = next.book.all().map(({ shown }) => shown.phase);
  await next.kill();
  return { job, isWhole: false, service, phases };
}

describe.each([
  ['a job that is refused', refuse],
  ['a job whose sandbox is lost', run],
] as const)('%s', (_what, manage) => {
  it.each(['before', 'after'] as const)('comes to an end when the broker is killed %s any write', async (when) => {
    let points = 0;
    for (let nth = 1; ; nth += 1) {
      const { job, isWhole, service, phases } = await play(manage, nth, when);
      const about = `${when} write ${nth}: ${JSON.stringify(job)} ${service.seen.join(', ')}`;
      expect(job.state, about).toBe('finished');
      expect(job.finish, about).toMatchObject({ exit_status: '-1', ignore_agent_in_dispatches: true });
      expect(job.log, about).not.toBe('');
      if (isWhole) break;
      points = nth;
      expect(phases, about).toEqual(['idle']);
      // Nobody is left at the service that would look as if it took jobs.
      const connected = [...service.agents.values()].filter(({ state }) => state === 'connected');
      expect(connected, about).toHaveLength(1);
    }
    expect(points).toBeGreaterThan(6);
  });
});
