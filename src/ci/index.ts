/**
 * Makes the CI services that config names. The types that it can name are in `types.ts`. A service that it does not name is not loaded:
 * all of them together take longer to load than the rest of the daemon.
 */

import { toFailure } from '../base/errors.ts';
import { mountProblemFor } from '../config/check-mounts.ts';
import type { ServiceConfig } from '../config/config.ts';
import { sleep } from '../core/clock.ts';
import { isEmpty } from '../core/slot.ts';
import { noProxies } from '../http/proxies.ts';
import type { CiService } from '../ports/ci-service.ts';
import { isFound } from '../system/real-path.ts';
import { counted } from './calls.ts';
import type { OtherService } from './open.ts';
import { createOwnQueue, type OwnQueue } from './own-queue/own-queue.ts';
import { ownQueue } from './own-queue/type.ts';
import type { CiParts, OpenParts } from './parts.ts';

/** ms between two looks at jobs of services that config no longer has. */
const strayEvery = 5_000;

/** The services of a config, in use or not. */
export interface CiServices {
  readonly own: OwnQueue;
  /** By the name that pools use; `own` is always there. */
  readonly byName: ReadonlyMap<string, CiService>;
  /** Ends what is left of services that config no longer has, as far as possible without them. Never fails. */
  endStrays(signal: AbortSignal): Promise<void>;
}

/** @throws OnejobError E_STATE_CORRUPT, E_SOCKET_PATH */
export async function createCiServices(parts: CiParts): Promise<CiServices> {
  const { config, env, store, clock, log, slots, onejob } = parts;
  const pools = config.pools.filter(({ service }) => service === 'own');
  const own = createOwnQueue({
    store,
    pools,
    clock,
    reasonFor: (pool) => slots.reasonFor(pool),
    mountProblem: mountProblemFor(config, env),
    // A file server may be away.
    isThere: (path) => isFound(path) !== false,
    people: parts.people ?? null,
    temporary: onejob.temporary === true ? (config.path ?? '') : null,
  });
  const inSlots = store.slots.all().filter(({ slot }) => !isEmpty(slot));
  // An unused service still has to remove what it made, and to hear of the end of running jobs.
  const used = new Set([
    ...config.pools.map((pool) => pool.service),
    ...store.registrations.services(),
    ...inSlots.map(({ slot }) => slot.service),
  ]);
  const others = config.services.filter((one) => used.has(one.name));
  const whole = { ...parts, opened: new Set(others.map(({ name }) => name)) };
  const made = await Promise.all(others.map(async (one) => [one.name, await make(one, own, whole)] as const));
  return {
    own,
    byName: new Map<string, CiService>([['own', own], ...made]),
    async endStrays(signal) {
      if (others.some(({ name }) => config.origins.has(name))) return;
      const known = new Set(['own', ...config.services.map(({ name }) => name)]);
      // Jobs of a service that left the config run to their end (S5).
      const isNeeded = (): boolean => store.slots.all().some(({ slot }) => !isEmpty(slot) && !known.has(slot.service));
      try {
        while (!signal.aborted && isNeeded()) await sleep(clock, strayEvery, signal);
        if (!signal.aborted) (await import('./filter/doors.ts')).endFilter(store.dir);
      } catch (error) {
        // The next manager looks again.
        if (!signal.aborted) log.warn('cannot end an unused filter', { reason: toFailure(error).message });
      }
    },
  };
}

async function make(service: ServiceConfig, own: OwnQueue, parts: CiParts & Pick<OpenParts, 'opened'>): Promise<CiService> {
  if (service.type === ownQueue.type) return own;
  const proxies = parts.env?.proxies ?? noProxies;
  const [{ createOutbound }, { openLoopback }, { proxyFindings }, { openService }] = await Promise.all([
    import('../http/outbound.ts'),
    import('./kit/loopback.ts'),
    import('./kit/doctor.ts'),
    import('./open.ts'),
  ]);
  const outbound = createOutbound(proxies);
  const pools = parts.config.pools.filter((pool) => pool.service === service.name);
  const { called } = parts;
  const send = parts.fetch ?? outbound.fetch;
  const whole = { ...parts, pools, fetch: called === undefined ? send : counted(send, (result) => called(service.name, result)) };
  const [made, address] = await openService(service as OtherService, whole);
  return {
    ...made,
    async register(context, signal) {
      await openLoopback(address, context, signal);
      return made.register(context, signal);
    },
    check: async (...given) => [...proxyFindings(service.name, address, proxies), ...(await made.check(...given))],
    async close(leaving) {
      await made.close?.(leaving);
      outbound.close();
    },
  };
}
