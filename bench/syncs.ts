/**
 * What a sync costs between the end of one job and the first byte of the next that waits for its slot, process runtime: in pairs with
 * another onejob, and with one fdatasync of the same disk after each.
 */
import { closeSync, fdatasyncSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type Home, onejob } from '../test/support/onejob.ts';
import { done, firstByte, untilIdle, wall } from './jobs.ts';
import { type Stats, stats } from './stats.ts';

export interface Released {
  /** From the last instruction of a job until the first byte of the next is at a client. ms */
  readonly gap: Stats;
  /** From the submission to a slot that waits until the first byte is at a client. ms */
  readonly accepted: Stats;
}

export interface ReleasePairs {
  readonly here: Released;
  /** null: there was no other onejob. */
  readonly before: Released | null;
  /** One write of 4 KiB and its fdatasync, next to the database. ms */
  readonly sync: Stats;
}

const bare = { pool: null } as const;
const config = JSON.stringify({ pools: { default: { runtime: 'process', agents: 1 } } });

/** `before`: program of the onejob to compare with. */
export async function releasePairs(rounds: number, before: string | null): Promise<ReleasePairs> {
  await using here = await onejob({ config });
  await using other = before === null ? null : await onejob({ config, program: before });
  const homes = [here, ...(other === null ? [] : [other])];
  for (const home of homes) await home.up();
  const gaps = homes.map((): number[] => []);
  const accepted = homes.map((): number[] => []);
  const syncs: number[] = [];
  for (let n = 0; n < rounds; n++) {
    // Each of the two comes first as often.
    const order = homes.map((_, at) => (at + n) % homes.length);
    for (const at of order) {
      const home = homes[at] as Home;
      accepted[at]?.push(await submitted(home));
      gaps[at]?.push(await gap(home));
    }
    syncs.push(sync(here.stateDir));
  }
  const released = (at: number): Released => ({ gap: stats(gaps[at] ?? []), accepted: stats(accepted[at] ?? []) });
  return { here: released(0), before: other === null ? null : released(1), sync: stats(syncs) };
}

async function submitted({ api }: Home): Promise<number> {
  await untilIdle(api);
  const began = wall();
  const { id } = await api.submit({ ...bare, command: ['echo', 'x'] });
  const { at } = await firstByte(api, id);
  await done(api, id);
  return at - began;
}

async function gap({ api }: Home): Promise<number> {
  await untilIdle(api);
  // Nothing but builtins runs between the last word and the end.
  const one = await api.submit({ ...bare, command: ['bash', '-c', 'sleep 0.4; echo $EPOCHREALTIME'] });
  const two = await api.submit({ ...bare, command: ['echo', 'x'] });
  const [last, first] = await Promise.all([firstByte(api, one.id), firstByte(api, two.id)]);
  await done(api, two.id);
  return first.at - Number(last.text) * 1000;
}

function sync(dir: string): number {
  const file = openSync(join(dir, 'bench'), 'w');
  try {
    const began = performance.now();
    writeSync(file, Buffer.alloc(4096));
    fdatasyncSync(file);
    return performance.now() - began;
  } finally {
    closeSync(file);
  }
}
