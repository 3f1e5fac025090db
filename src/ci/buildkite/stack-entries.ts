/**
 * The stacks by which this host is known to the service, one for each queue. Written down before the service is asked, so that one
 * that was made right before a crash is found and taken back (S4).
 */
import { createHash } from 'node:crypto';
import type { Clock } from '../../core/clock.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Store } from '../../store/store.ts';
import type { Stacks } from './stacks.ts';

export interface StackEntriesParts {
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

export interface StackEntries {
  /** Of the queue's stack: at most 80 characters, and another one on every host. */
  keyOf(queue: string): string;
  /** Makes the queue's stack known. @throws OnejobError E_CI_*, or the reason of `signal` */
  register(queue: string, signal: AbortSignal): Promise<void>;
  /** Takes back all but those of these queues. The first failure is thrown once all were tried. @throws OnejobError E_CI_* */
  forget(but: ReadonlySet<string>, signal: AbortSignal): Promise<void>;
}

/** ms between two tries to take back what nobody needs any more. */
const tryAgain = 300_000;

/** Takes back stacks of queues that config does not name any more, until that is done or `signal` aborts. */
export function forgetOldStacks(
  entries: Pick<StackEntries, 'forget'>,
  queues: ReadonlySet<string>,
  { clock, log, service }: { readonly clock: Clock; readonly log: Log; readonly service: string },
  signal: AbortSignal,
): void {
  const attempt = async (): Promise<void> => {
    try {
      await entries.forget(queues, signal);
    } catch (error) {
      if (signal.aborted) return;
      log.warn('old stacks are left at the service', { service, reason: toFailure(error).message });
      const callOff = clock.after(tryAgain, () => void attempt());
      signal.addEventListener('abort', callOff, { once: true });
    }
  };
  void attempt();
}

/** What they are called among the registrations of agents. */
const prefix = 'stack ';

export function createStackEntries({ service, host, version, store, stacks, wall }: StackEntriesParts): StackEntries {
  const { registrations, owner } = store;
  const write = (change: () => void): void => store.transaction({ durable: false }, change);
  const keyOf = (queue: string): string => {
    const words = [owner.slice(0, 8), host, queue].map((word) => word.replaceAll(/[^A-Za-z0-9]+/g, '-').slice(0, 20));
    // Two services of one organisation may name the same queue, and a key is its stack's alone.
    const mark = createHash('sha256')
      .update(JSON.stringify([owner, host, service, queue]))
      .digest('hex')
      .slice(0, 8);
    return ['onejob', ...words, mark].join('-');
  };

  return {
    keyOf,
    async register(queue, signal) {
      const key = keyOf(queue);
      const agent = `${prefix}${key}`;
      write(() => {
        // What was removed never comes back, which is right for agents.
        if (registrations.get(agent)?.state === 'removed') registrations.forget(agent);
        registrations.intend({ agent, service, place: queue, name: key, placeholder: true }, wall());
      });
      const remote = await stacks.register(key, queue, { host, onejob: version }, signal);
      write(() => registrations.made(agent, remote, wall()));
    },
    async forget(but, signal) {
      const failures: unknown[] = [];
      for (const { agent, name, place } of registrations.open(service)) {
        if (!agent.startsWith(prefix) || (but.has(place) && name === keyOf(place))) continue;
        try {
          await stacks.deregister(name, signal);
          write(() => registrations.removed(agent, wall()));
        } catch (error) {
          signal.throwIfAborted();
          failures.push(error);
        }
      }
      if (failures.length > 0) throw failures[0];
    },
  };
}
