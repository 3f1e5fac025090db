/** What a person would look at in `onejob status`, for tests that wait for something there. */
import type { PoolView, SlotView } from '../../src/contract/schema.ts';
import type { Home } from './onejob.ts';

export async function poolOf(here: Home, name = 'default'): Promise<PoolView> {
  const pool = (await here.api.status()).pools.find((one) => one.name === name);
  if (pool === undefined) throw new Error(`no pool ${name}`);
  return pool;
}

export async function slotOf(here: Home, key = 'default/1'): Promise<SlotView> {
  const slot = (await poolOf(here, key.split('/')[0])).slots.find((one) => one.key === key);
  if (slot === undefined) throw new Error(`no slot ${key}`);
  return slot;
}

/** The agent that stands by in a slot; null while there isn't one. */
export async function standbyOf(here: Home, key = 'default/1'): Promise<string | null> {
  const { standby } = await slotOf(here, key);
  return standby.state === 'standby' ? standby.agent : null;
}
