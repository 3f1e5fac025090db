/**
 * Placeholders of pools whose agents are on machines in a cloud: while there is no machine, their jobs must wait too. This host makes
 * none of these agents, so it learns from those of the machines what they can do. Until it has seen one, a placeholder says what its
 * pool's tags say, and what all agents of onejob have.
 */
import { toFailure } from '../../base/errors.ts';
import type { Shown } from '../early/port.ts';
import { markIn } from '../early/registrations.ts';
import { sharedCapabilities, tagCapabilities } from './capabilities.ts';
import type { AzureParts } from './parts.ts';
import type { PlaceholderKind, Placeholders } from './placeholder.ts';
import type { AzurePool } from './pools.ts';

interface Away extends AzurePool {
  readonly elsewhere: NonNullable<AzurePool['elsewhere']>;
}

/** How many slots of machines are remembered that taught something. */
const remembered = 1_000;

/** `closing`: aborts when the service ends. Returns what follows a look; what fails is tried again after the next one. */
export function createCloudPlaceholders(
  { config, client, log, pools }: Pick<AzureParts, 'config' | 'client' | 'log' | 'pools'>,
  placeholders: Placeholders,
  closing: AbortSignal,
): (shown: Shown, signal: AbortSignal) => Promise<void> {
  const away = pools.filter((pool): pool is Away => pool.elsewhere !== undefined);
  const taught = new Set<string>();
  let { version } = config.agentPackage;
  let said: string | null = null;

  const kindOf = ({ name, tags, elsewhere }: Away): PlaceholderKind => {
    const shared = sharedCapabilities({
      ...tagCapabilities(tags),
      'onejob.pool': elsewhere.pool,
      'Agent.OS': 'Linux',
      'Agent.OSArchitecture': 'X64',
      // Most jobs demand a version.
      ...(version !== null && { 'Agent.Version': version }),
    });
    return { set: JSON.stringify([name, tagCapabilities(tags)]), shared, pool: name, inside: { version } };
  };

  const keep = async (own: readonly Away[], { place, entries }: Shown, signal: AbortSignal): Promise<void> => {
    const id = Number(place);
    version ??= (await client.packages('linux-x64', signal))[0]?.version ?? null;
    for (const pool of own) await placeholders.ensure(id, kindOf(pool), closing);
    for (const entry of entries) {
      // One agent of each slot of a machine is enough.
      const slot = entry.name.replace(/-[^-]*-[^-]*$/, '');
      const of = own.filter(({ elsewhere }) => entry.name.startsWith(`${elsewhere.host}-`));
      if (of.length === 0 || entry.status !== 'online' || taught.has(slot) || markIn(entry.name)?.isPlaceholder !== false) continue;
      const whole = await client.agent(id, Number(entry.id), { capabilities: true }, signal);
      const its = whole?.systemCapabilities?.['onejob.pool'];
      const pool = of.find(({ elsewhere }) => elsewhere.pool === its);
      if (whole !== null && pool !== undefined) await placeholders.learn(id, kindOf(pool).set, whole, signal);
      taught.add(slot);
      for (const old of [...taught].slice(0, -remembered)) taught.delete(old);
    }
  };

  return async (shown, signal) => {
    const own = away.filter(({ queue }) => queue.toLowerCase() === shown.title.toLowerCase());
    if (own.length === 0) return;
    try {
      await keep(own, shown, signal);
      said = null;
    } catch (error) {
      signal.throwIfAborted();
      const reason = toFailure(error).message;
      if (said !== reason)
        log.warn('no placeholder for machines in a cloud yet: their jobs may fail', { place: shown.title, reason });
      said = reason;
    }
  };
}
