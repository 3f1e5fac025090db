/** How long the core thinks about one event, by number of slots: decide, plan, decide again. */

import { decide } from '../src/core/decide.ts';
import { type PoolView, plan } from '../src/core/plan.ts';
import { emptySlot, type Slot } from '../src/core/slot.ts';
import { rounded, type Stats, stats } from './stats.ts';

export interface CoreFigure {
  readonly slots: number;
  /** µs per event */
  readonly perEvent: Stats;
}

const pool: PoolView = {
  binds: 'late',
  wanted: true,
  standby: true,
  paused: false,
  backoff: null,
  fingerprint: 'f',
  standbyMaxAge: 1e9,
  waiting: { job: 'next', limit: null, cold: false },
  devices: [],
  held: false,
  closed: false,
  lost: false,
  mayRenew: true,
  ownImageOnly: false,
  unneeded: false,
  contested: false,
  pilots: null,
  alone: false,
};

/** A job's end at a busy slot with a standby: the event that matters most, since a job waits behind it. */
export function coreFigure(slots: number, rounds = 20_000): CoreFigure {
  const table = new Map<string, Slot>();
  for (let n = 0; n < slots; n++) {
    table.set(`p/${n}`, {
      ...emptySlot({ key: `p/${n}`, runtime: 'docker', grace: 1000 }),
      standby: { kind: 'standby', agent: `s${n}`, reserved: null, fingerprint: 'f', since: 0 },
      agent: { kind: 'busy', agent: `a${n}`, job: `j${n}`, since: 0, due: null },
    });
  }
  const times: number[] = [];
  for (let round = -2_000; round < rounds; round++) {
    const n = Math.abs((round * 7919) % slots);
    const began = process.hrtime.bigint();
    const before = table.get(`p/${n}`);
    if (before === undefined) throw new Error('no slot');
    const exited = decide(before, { kind: 'exited', agent: `a${n}`, exit: { kind: 'code', code: 0 }, released: true }, 1);
    const intent = plan(exited.slot, pool, 1);
    if (intent?.kind !== 'assign') throw new Error('the next job was not assigned');
    const assigned = decide(exited.slot, intent, 1);
    const fill = plan(assigned.slot, pool, 1);
    if (fill?.kind !== 'fill') throw new Error('no new standby was asked for');
    const filled = decide(assigned.slot, { ...fill, agent: 'n' }, 1);
    const took = Number(process.hrtime.bigint() - began) / 1000;
    if (filled.slot.leaving.length !== 1) throw new Error('the ended agent is not leaving');
    if (round >= 0) times.push(took);
  }
  return { slots, perEvent: stats(times.map(rounded)) };
}
