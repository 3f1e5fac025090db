import { expect, test } from 'vitest';
import { poolLike } from '../../../test/kit/pool.ts';
import { emptySlot, type Slot } from '../../core/slot.ts';
import { Offers } from './reconciler.ts';

const host = { stopping: false, paused: false, now: 100 };
const empty = emptySlot({ key: 'p/1', runtime: 'docker', service: 'ci', grace: 5 });
const atGate: Slot = { ...empty, standby: { kind: 'standby', agent: 'a', reserved: null, fingerprint: 'f', since: 0 } };

function poolThat({ standsForSlots = true, tellsOffers = true } = {}) {
  const heard: string[] = [];
  const service = {
    name: 'ci',
    capabilities: { binds: 'late', standsForSlots, terms: 1, poolTimeout: true, jobOnStdout: false },
    jobs: { next: () => null, offer: (key: string, offer: string) => heard.push(`${key} ${offer}`) },
  };
  const pool = poolLike({ standbyMaxAge: 1_000, stopGrace: 5 }, { service, tellsOffers });
  pool.rollout.learn('p/1', 'f');
  return { pool, heard };
}

test('no service is told if no agent stands for a slot, or if the manager is temporary', () => {
  for (const kind of [{ standsForSlots: false }, { tellsOffers: false }]) {
    const { pool, heard } = poolThat(kind);
    new Offers().tell(atGate, pool, host);
    expect(heard).toEqual([]);
  }
});
