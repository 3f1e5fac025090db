/** What needs a person, most serious first. Pure. */
import type { World } from '../live/world.ts';
import { deviceReason, named } from './names.ts';
import { plain } from './text.ts';
import { deviceState, poolProblems, type Tone } from './words.ts';

export interface Concern {
  readonly key: string;
  readonly tone: Extract<Tone, 'bad' | 'warn' | 'calm'>;
  readonly subject: string;
  readonly text: string;
  readonly hint: string | null;
}

const ranks = { bad: 0, warn: 1, calm: 2 } as const;

/** `now`: wall clock, ms. */
export function concerns(
  { host, pools, devices, names }: Pick<World, 'host' | 'pools' | 'devices' | 'names'>,
  now: number,
): Concern[] {
  const found: Concern[] = [];
  const add = (tone: Concern['tone'], subject: string, text: string, hint: string | null = null) =>
    found.push({ key: `${subject} ${text}`, tone, subject, text: named(text, names), hint: hint === null ? null : plain(hint) });
  if (host.stopping) add('warn', 'The daemon', 'is stopping');
  for (const problem of host.problems) add('bad', 'Host:', problem);
  if (host.configChanged !== null) add('warn', 'Config:', host.configChanged);
  for (const device of devices) {
    // What its GPU says already.
    if (device.parent !== null && devices.some(({ uuid, why }) => uuid === device.parent && why === device.why)) continue;
    const { word, tone } = deviceState(device);
    const why = deviceReason(device, names);
    if (tone === 'bad') add('bad', names.get(device.uuid) ?? '', `is ${word}${why === null ? '' : `: ${why}`}`, device.hint);
  }
  for (const pool of pools) {
    const tone = pool.backoff === null ? 'warn' : 'bad';
    for (const { text, hint } of poolProblems(pool, now)) add(tone, `Pool ${plain(pool.name)}`, text, hint);
    if (pool.update !== undefined && pool.update.failure !== null) add('warn', `Pool ${plain(pool.name)}:`, pool.update.text);
    if (pool.devices !== null && pool.devices.ready < pool.devices.wanted)
      add('warn', `Pool ${plain(pool.name)}`, `has devices for ${pool.devices.ready} of ${pool.devices.wanted} agents`);
  }
  return found.sort((a, b) => ranks[a.tone] - ranks[b.tone]);
}
