/** Sandboxes that an engine places: one is asked for while more jobs wait than sandboxes are under way, and any takes any job. */
import { describe, expect, it } from 'vitest';
import { type PoolView, plan } from './plan.ts';
import { emptySlot, type Reserved, type Slot } from './slot.ts';

const job: Reserved = { job: 'j', limit: 5, cold: false };
const pool: PoolView = {
  binds: 'late',
  wanted: true,
  standby: false,
  paused: false,
  backoff: null,
  fingerprint: 'f',
  standbyMaxAge: 1000,
  waiting: job,
  devices: [],
  held: false,
  closed: false,
  lost: false,
  mayRenew: true,
  ownImageOnly: false,
  unneeded: false,
  contested: false,
  pilots: 'more',
  alone: true,
};
const free = emptySlot({ key: 'p/1', runtime: 'cluster', grace: 1 });
const queued: Slot = { ...free, standby: { kind: 'preparing', agent: 'a', reserved: null, since: 0 } };
const ready: Slot = { ...free, standby: { kind: 'standby', agent: 'a', reserved: null, fingerprint: 'f', since: 0 } };
const busy: Slot['agent'] = { kind: 'busy', agent: 'b', job: 'k', since: 0, due: null };
const plans = (slot: Slot, changes: Partial<PoolView> = {}) => plan(slot, { ...pool, ...changes }, 0);

describe('a pool whose engine places sandboxes', () => {
  it('asks for one that is for any job', () => {
    expect(plans(free)).toEqual({ kind: 'fill', reserved: null });
  });

  it('asks for none while enough are under way, and for none behind a job that runs', () => {
    expect(plans(free, { pilots: 'enough' })).toBeNull();
    expect(plans({ ...free, agent: busy })).toBeNull();
  });

  it('asks for one of its own for a job that no other fits', () => {
    expect(plans(free, { pilots: 'enough', waiting: { ...job, cold: true } })).toEqual({
      kind: 'fill',
      reserved: { ...job, cold: true },
    });
  });

  it('gives the first job to whichever is ready', () => {
    expect(plans(ready, { pilots: 'enough' })).toEqual({ kind: 'assign', job: 'j', limit: 5 });
  });

  it('takes one back when there are more than jobs, whether it waits at the engine or at the gate', () => {
    for (const slot of [queued, ready]) expect(plans(slot, { pilots: 'surplus', waiting: null })).toEqual({ kind: 'discard' });
    expect(plans(queued, { pilots: 'enough', waiting: null })).toBeNull();
  });

  it('takes back none that was made for one job', () => {
    const own: Slot = { ...free, standby: { kind: 'preparing', agent: 'a', reserved: { ...job, cold: true }, since: 0 } };
    expect(plans(own, { pilots: 'surplus' })).toBeNull();
  });

  it('takes all back when it is not wanted', () => {
    expect(plans(queued, { wanted: false })).toEqual({ kind: 'discard' });
  });

  it('keeps its place in the queue of the engine while it is paused', () => {
    expect(plans(queued, { paused: true })).toBeNull();
    expect(plans(free, { paused: true })).toBeNull();
  });
});
