import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { type Change, emptySlot } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import { Committer } from './commit.ts';

const slot = emptySlot({ key: 'p/1', runtime: 'docker', grace: 0 });
const ended = (job: string): Change => ({ change: 'ended', job, agent: 'a', result: { kind: 'code', code: 0 } });

/** A disk whose syncs end when told to, a service that reports results, and a clock moved by hand. */
function workbench() {
  const told: string[] = [];
  const syncs: { done: () => void; fail: (error: Error) => void }[] = [];
  let fresh: string[] = [];
  const clock = handClock();
  const jobs = {
    record: (change: Change) => void ('job' in change && fresh.push(change.job)),
    committed() {},
    rolledBack() {},
    syncing: () => {
      const recorded = fresh;
      fresh = [];
      return () => void told.push(...recorded);
    },
  };
  const service = { jobs } as unknown as CiService;
  const committer = new Committer({
    clock,
    log: { info() {}, warn() {}, error() {} },
    store: {
      transaction: (write) => write(),
      sync: () => new Promise((done, fail) => syncs.push({ done, fail })),
      syncNow() {},
      save() {},
    },
    refused() {},
    retry() {},
    recovered() {},
  });
  const settled = () => new Promise<void>((resolve) => setImmediate(resolve));
  const end = (job: string) => committer.commit(slot, slot, [ended(job)], service);
  return { committer, told, syncs, settled, clock, end };
}

test('simultaneous results reach the disk together, and are reported then', async () => {
  const { told, syncs, settled, clock, end } = workbench();
  end('j1');
  end('j2');
  clock.advance(2);
  expect([syncs.length, told]).toEqual([1, []]);
  syncs[0]?.done();
  await settled();
  expect(told).toEqual(['j1', 'j2']);
});

test('a result that arrives during a sync waits for the next one', async () => {
  const { told, syncs, settled, clock, end } = workbench();
  end('j1');
  clock.advance(2);
  end('j2');
  expect(clock.next()).toBeNull();
  syncs[0]?.done();
  await settled();
  expect(told).toEqual(['j1']);
  clock.advance(2);
  syncs[1]?.done();
  await settled();
  expect(told).toEqual(['j1', 'j2']);
  expect(clock.next()).toBeNull();
});

test('a failed sync is tried again, and nothing is reported before it succeeds', async () => {
  const { told, syncs, settled, clock, end } = workbench();
  end('j1');
  clock.advance(2);
  end('j2');
  syncs[0]?.fail(new Error('no space left on device'));
  await settled();
  expect(told).toEqual([]);
  clock.advance(1_000);
  expect(syncs).toHaveLength(2);
  syncs[1]?.done();
  await settled();
  expect(told).toEqual(['j1', 'j2']);
});

test('at the end everything is reported at once, including a sync in progress', async () => {
  const { committer, told, syncs, settled, clock, end } = workbench();
  end('j1');
  clock.advance(2);
  end('j2');
  committer.close();
  expect(told).toEqual(['j1', 'j2']);
  syncs[0]?.done();
  await settled();
  expect(told).toEqual(['j1', 'j2']);
  expect(clock.next()).toBeNull();
});
