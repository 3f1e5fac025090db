/** Slots as they were last decided. Saving one costs the same for any number of slots. */
import { z } from 'zod';
import { exit, failure } from '../contract/job.ts';
import type { Slot } from '../core/slot.ts';
import { type Reader, understand } from './db.ts';

const agent = z.string();
const reserved = z.object({ job: z.string(), limit: z.number().nullable(), cold: z.boolean() }).nullable();
const why = z.enum(['cancelled', 'timeout', 'disk', 'shutdown', 'taken', 'renewal', 'unreleased']);
const job = z.string().nullable();

const standby = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('none') }),
  z.object({ kind: z.literal('preparing'), agent, reserved, since: z.number() }),
  z.object({ kind: z.literal('standby'), agent, reserved, fingerprint: z.string(), since: z.number() }),
]);

// Slots of 0.1.0 and before have neither a fingerprint nor the exit of what leaves.
const fingerprint = z.string().default('');
const agentLane = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('free') }),
  z.object({ kind: z.literal('registering'), agent, fingerprint, since: z.number() }),
  z.object({ kind: z.literal('releasing'), agent, job, limit: z.number().nullable(), fingerprint, since: z.number() }),
  z.object({ kind: z.literal('idle'), agent, fingerprint, online: z.boolean(), since: z.number() }),
  z.object({ kind: z.literal('retiring'), agent, since: z.number() }),
  z.object({ kind: z.literal('busy'), agent, job, since: z.number(), due: z.number().nullable() }),
  z.object({
    kind: z.literal('ending'),
    signal: z.enum(['TERM', 'KILL']),
    agent,
    job,
    why,
    released: z.boolean(),
    failure: failure.nullable(),
    due: z.number(),
  }),
  z.object({ kind: z.literal('proving'), agent, since: z.number() }),
]);

export const slotSchema = z.object({
  key: z.string(),
  runtime: z.string(),
  service: z.string().default(''),
  devices: z.array(z.string()),
  grace: z.number(),
  standby,
  agent: agentLane,
  leaving: z.array(z.object({ agent, job, exit: exit.nullable().default(null) })),
}) satisfies z.ZodType<Slot>;

export function slotTable(db: Reader, bootId: string) {
  const all = db.prepare('SELECT key, boot, body FROM slots ORDER BY key');
  const save = db.prepare(
    'INSERT INTO slots (key, boot, body) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET boot = excluded.boot, body = excluded.body',
  );
  const remove = db.prepare('DELETE FROM slots WHERE key = ?');
  return {
    /**
     * Every slot, by key. Its times are valid only if `thisBoot`: the core's clock restarts with each boot.
     * @throws OnejobError E_STATE_CORRUPT if one is invalid
     */
    all: () =>
      all.all().map(({ key, boot, body }) => ({
        slot: understand(db, `slot ${key}`, () => slotSchema.parse(JSON.parse(String(body)))),
        thisBoot: boot === bootId,
      })),
    save: (slot: Slot): void => void save.run(slot.key, bootId, JSON.stringify(slot)),
    remove: (key: string): void => void remove.run(key),
  };
}
