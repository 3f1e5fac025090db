/**
 * The stack by which this host is known to the service, one for all of its queues. Written down before the service is asked, so that
 * one that was made right before a crash is found and taken back (S4).
 */
import { createHash } from 'node:crypto';
import { OnejobError } from '../../errors.ts';
import type { Store } from '../../store/store.ts';
import type { Stacks } from './stacks.ts';

export interface StackEntryParts {
  /** Name of the service in the config. */
  readonly service: string;
  /** The host's short name. */
  readonly host: string;
  /** Of onejob. */
  readonly version: string;
  readonly store: Pick<Store, 'registrations' | 'transaction' | 'owner'>;
  readonly stacks: Pick<Stacks, 'register' | 'deregister'>;
  /** Wall clock, ms since the epoch. */
  readonly wall: () => number;
}

export interface StackEntry {
  /** At most 80 characters, and another one on every host: who registers the same key takes the stack over. */
  readonly key: string;
  /** The service knows it, as far as was heard. */
  readonly isKnown: boolean;
  /**
   * Makes it known, once for all who ask. A stack is registered with one queue, and may list any of its cluster.
   * @param again the service did not know it any more
   * @throws OnejobError E_CI_*, or the reason of `signal`
   */
  register(queue: string, again: boolean, signal: AbortSignal): Promise<void>;
  /** Takes it back, with those of earlier configs. The first failure is thrown once all were tried. @throws OnejobError E_CI_* */
  forget(signal: AbortSignal): Promise<void>;
}

/** What they are called among the registrations of agents. */
const prefix = 'stack ';

export function createStackEntry({ service, host, version, store, stacks, wall }: StackEntryParts): StackEntry {
  const { registrations, owner } = store;
  const write = (change: () => void): void => store.transaction({ durable: false }, change);
  const words = [owner.slice(0, 8), host, service].map((word) => word.replaceAll(/[^A-Za-z0-9]+/g, '-').slice(0, 20));
  const mark = createHash('sha256')
    .update(JSON.stringify([owner, host, service]))
    .digest('hex')
    .slice(0, 8);
  const key = ['onejob', ...words, mark].join('-');
  const agent = `${prefix}${key}`;
  let isKnown = false;
  let registering: Promise<void> | null = null;

  async function make(queue: string, signal: AbortSignal): Promise<void> {
    write(() => {
      // What was removed never comes back, which is right for agents.
      if (registrations.get(agent)?.state === 'removed') registrations.forget(agent);
      registrations.intend({ agent, service, place: queue, name: key, placeholder: true }, wall());
    });
    const remote = await stacks.register(key, queue, { host, onejob: version }, signal);
    write(() => registrations.made(agent, remote, wall()));
    isKnown = true;
  }

  return {
    key,
    get isKnown() {
      return isKnown;
    },
    async register(queue, again, signal) {
      if (again && registering === null) isKnown = false;
      if (isKnown) return;
      registering ??= make(queue, signal).finally(() => {
        registering = null;
      });
      await registering;
    },
    async forget(signal) {
      const failures: unknown[] = [];
      isKnown = false;
      for (const one of registrations.open(service)) {
        if (!one.agent.startsWith(prefix)) continue;
        try {
          await stacks.deregister(one.name, signal);
          write(() => registrations.removed(one.agent, wall()));
        } catch (error) {
          signal.throwIfAborted();
          failures.push(error);
        }
      }
      if (failures.length > 0) throw failures[0];
    },
  };
}

/** A stack that is refused is mostly one of a token that may have none, or one too many for the organisation. */
export function whyRefused(error: unknown): unknown {
  if (!(error instanceof OnejobError) || (error.code !== 'E_CI_DENIED' && error.code !== 'E_CI_CREDENTIAL')) return error;
  const hint =
    'A stack needs the token of a cluster, and an organisation has a limit of stacks: remove old ones on its pages, or ask for more.';
  return new OnejobError(error.code, error.message, { hint, retry: error.retry, cause: error });
}
