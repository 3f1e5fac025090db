/** Jobs as a bench sees them: handed in by the API, their first byte awaited. */
import type { Client } from '../src/api/client.ts';
import type { SlotView } from '../src/contract/schema.ts';

export interface FirstByte {
  readonly text: string;
  /** `Date.now()` with fractions, when it was here. */
  readonly at: number;
}

/** Wall clock in ms with µs: what `$EPOCHREALTIME` of a job can be compared with. */
export function wall(): number {
  return performance.timeOrigin + performance.now();
}

/** Follows a job's output and resolves at its first piece. */
export async function firstByte(api: Client, job: string): Promise<FirstByte> {
  let first: FirstByte | null = null;
  for await (const piece of api.logs({ job }, { follow: true })) {
    first ??= { text: Buffer.from(piece.bytes).toString(), at: wall() };
  }
  if (first === null) throw new Error(`job ${job} said nothing`);
  return first;
}

/** Waits until every slot has a standby and no agent, looking every 20 ms: the API has no event for it. */
export async function untilIdle(api: Client, patience = 60_000): Promise<SlotView[]> {
  for (const until = Date.now() + patience; ; ) {
    const slots = (await api.status()).pools.flatMap((pool) => pool.slots);
    if (slots.every((slot) => slot.standby.state === 'standby' && slot.agent.state === 'free' && slot.leaving.length === 0))
      return slots;
    if (Date.now() > until) throw new Error(`slots are not idle: ${JSON.stringify(slots)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Submits and waits until it is done; throws unless it exits 0. */
export async function done(api: Client, job: string): Promise<void> {
  const { result, reason } = await api.settled(job);
  if (result?.kind !== 'code' || result.code !== 0) throw new Error(`job ${job}: ${JSON.stringify(result)} ${reason ?? ''}`);
}
