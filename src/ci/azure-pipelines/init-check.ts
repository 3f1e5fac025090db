/** Looks at Azure Pipelines with a token before anything is written: does it sign in, and is there the pool. */

import { systemClock } from '../../clock.ts';
import { OnejobError } from '../../errors.ts';
import type { AzureClient } from './client.ts';

/** What `init` asks of the service. */
export type Look = Pick<AzureClient, 'connection' | 'findPool' | 'pools'>;

/** A client that signs in with this token. `from` says to people which one it is. */
export async function lookWith(url: string, token: string, from: string, version: string): Promise<Look> {
  const [{ createAzureClient }, { createCredential }] = await Promise.all([import('./client.ts'), import('./credential.ts')]);
  const reference = { kind: 'memory', name: from, expires: null, read: () => token } as const;
  const credential = createCredential({ kind: 'pat', token: reference }, { clock: systemClock, wall: systemClock.wall, url });
  return createAzureClient({ url, credential, clock: systemClock, version });
}

/** Above this an agent may not be able to sign in, ms. */
const worstSkew = 60_000;

/** Lines on who signed in. @throws OnejobError E_CI_* */
export async function checkSignIn(look: Look, url: string, signal: AbortSignal): Promise<string[]> {
  const { user, skew } = await look.connection(signal);
  const lines = [`${url} takes the token${user === null ? '' : ` of ${user}`}.`];
  if (skew !== null && Math.abs(skew) > worstSkew) {
    const seconds = Math.round(Math.abs(skew) / 1000);
    lines.push(
      `The clock of this host is ${seconds} s ${skew > 0 ? 'behind' : 'ahead'}: agents may not be able to sign in; let NTP set it.`,
    );
  }
  return lines;
}

/** @throws OnejobError E_CI_POOL with the pools that there are, E_CI_* */
export async function checkPool(look: Look, pool: string, signal: AbortSignal): Promise<string[]> {
  const found = await look.findPool(pool, signal);
  if (found !== null) {
    const updates = found.autoUpdate === true;
    const advice = 'It updates its agents by itself, which single-use agents are not good at: switch that off in its settings.';
    return [`There is an agent pool ${JSON.stringify(pool)}.`, ...(updates ? [advice] : [])];
  }
  const names = (await look.pools(signal)).filter(({ isHosted }) => isHosted !== true).map(({ name }) => name);
  const seen = names.length === 0 ? 'It shows this token none.' : `It has: ${names.join(', ')}.`;
  throw new OnejobError('E_CI_POOL', `The service has no agent pool ${JSON.stringify(pool)}. ${seen}`, {
    hint: 'Make it on the website (Organization settings, Agent pools), or type the name of another one.',
  });
}
