/**
 * What machines that are gone have left at CI services: a machine that dies without draining deregisters nothing. The names of its agents
 * begin with those of its host and itself, and only what a service calls offline is removed. What cannot be removed yet, such as an agent
 * that its service still believes to be online, is tried again.
 */

import type { Log } from '../base/log.ts';
import { markIn } from '../ci/early/registrations.ts';
import { type Clock, doubling, sleep, Timers } from '../core/clock.ts';
import type { CiService, NamedRemoval } from '../ports/ci-service.ts';
import type { LeftRegistrations, Machine } from '../store/machine.ts';
import type { Store } from '../store/store.ts';
import { agentPrefix } from './guest.ts';

type Service = Pick<CiService, 'name' | 'removeNamed'>;

/** ms until the next try: the first, and the longest wait. GitHub and Azure need up to 15 minutes to give up an agent. */
const [first, longest] = [30_000, 900_000];
/** s after which nobody tries any more; `onejob cloud sweep` still does. */
const patience = 86_400;

export interface ClearingParts {
  readonly clock: Clock;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
  readonly store: Pick<Store, 'machines' | 'transaction'>;
  readonly services: readonly Service[];
}

interface Pending {
  readonly machine: Machine;
  failures: number;
  dueAt: number;
}

/** Removes them for machines of the ledger, and writes down what was removed. */
export class Clearing {
  readonly #parts: ClearingParts;
  readonly #ending = new AbortController();
  readonly #timers: Timers;
  readonly #pending = new Map<string, Pending>();
  #running: Promise<void> | null = null;

  constructor(parts: ClearingParts) {
    this.#parts = parts;
    this.#timers = new Timers(parts.clock);
  }

  /** Takes up what an earlier controller left. */
  start(): void {
    for (const machine of this.#parts.store.machines.gone(this.#wallNow - patience)) this.#add(machine);
    this.#next();
  }

  /** The machine is gone. */
  gone(machine: Machine): void {
    this.#add(machine);
    this.#next();
  }

  /** Looks now, and once, for a command that ends. What is left then: names, or why nobody knows. */
  async finish(): Promise<readonly string[]> {
    await this.#running;
    for (const one of this.#pending.values()) one.dueAt = this.#parts.clock.now();
    if (this.#pending.size > 0) await this.#pass();
    const { machines } = this.#parts.store;
    const found = [...this.#pending.keys()].flatMap((run) => machines.get(run)?.registrations ?? []);
    return [...new Set(found.flatMap(({ left, unknown }) => [...left, ...unknown]))];
  }

  close(): void {
    this.#ending.abort();
    this.#timers.clear();
  }

  /** Seconds since the epoch. */
  get #wallNow(): number {
    return Math.floor(this.#parts.clock.wall() / 1000);
  }

  #add(machine: Machine): void {
    // What never existed has registered nothing.
    if (machine.made === null && machine.items.length === 0 && machine.credentialHash === null) return;
    if (machine.registrations?.clearedAt != null || this.#wallNow > machine.since + patience) return;
    this.#pending.set(machine.run, { machine, failures: 0, dueAt: this.#parts.clock.now() });
  }

  #next(): void {
    const due = Math.min(...[...this.#pending.values()].map(({ dueAt }) => dueAt));
    if (!this.#ending.signal.aborted && Number.isFinite(due)) this.#timers.arm('next', due, () => void this.#pass());
  }

  /** Looks once at all services for all machines that are due. */
  #pass(): Promise<void> {
    this.#running ??= this.#look()
      .catch((error: unknown) => {
        if (!this.#ending.signal.aborted) this.#parts.log.error('failed to remove registrations of machines', { error });
        for (const one of this.#pending.values()) this.#later(one);
      })
      .finally(() => {
        this.#running = null;
        this.#next();
      });
    return this.#running;
  }

  #later(one: Pending): void {
    one.failures += 1;
    one.dueAt = this.#parts.clock.now() + doubling(first, longest, one.failures);
  }

  async #look(): Promise<void> {
    const { store, clock, services } = this.#parts;
    // One that has appeared again registers agents.
    for (const run of this.#pending.keys()) if (store.machines.get(run)?.state !== 'gone') this.#pending.delete(run);
    const due = [...this.#pending.values()].filter(({ dueAt }) => dueAt <= clock.now());
    if (due.length === 0) return;
    const runs = new Map(due.map(({ machine: { host, run } }) => [`${agentPrefix(host, run)}-`, run]));
    const runOf = (name: string): string | null => [...runs].find(([prefix]) => name.startsWith(prefix))?.[1] ?? null;
    const all = await removeAll(services, (name) => runOf(name) !== null, { dryRun: false }, this.#ending.signal);
    this.#ending.signal.throwIfAborted();
    const found = mergeAll(all.map(({ result }) => result));
    const runOfMark = new Map([...found.removed, ...found.left].flatMap((name) => markOf(name, runOf(name))));
    for (const one of due) {
      const { run } = one.machine;
      // A placeholder without agents is of one of them.
      const isOf = (name: string): boolean => (runOf(name) ?? runOfMark.get(markIn(name)?.mark ?? '') ?? run) === run;
      this.#settle(one, { ...found, removed: found.removed.filter(isOf), left: found.left.filter(isOf) });
    }
  }

  /** Writes down what was found of one machine, and whether it is looked for again. */
  #settle(one: Pending, { removed, left, unknown }: NamedRemoval): void {
    const { log } = this.#parts;
    const { run } = one.machine;
    const isDone = left.length === 0 && unknown.length === 0;
    const isOver = this.#wallNow > one.machine.since + patience;
    this.#write(run, { removed, left, unknown, clearedAt: isDone ? this.#wallNow : null });
    if (removed.length > 0) log.info('removed registrations of a machine that is gone', { machine: run, removed });
    if (!isDone && isOver) log.warn('registrations of a machine are left', { machine: run, left, unknown });
    if (isDone || isOver) this.#pending.delete(run);
    else this.#later(one);
  }

  /** It may have appeared again meanwhile. */
  #write(run: string, found: LeftRegistrations): void {
    const { store } = this.#parts;
    const machine = store.machines.get(run);
    if (machine?.state !== 'gone') return;
    const removed = [...new Set([...(machine.registrations?.removed ?? []), ...found.removed])];
    store.transaction({ durable: false }, () => store.machines.put({ ...machine, registrations: { ...found, removed } }));
  }
}

/** Placeholders have no name of a machine, but the mark of its agents. */
function markOf(name: string, run: string | null): (readonly [mark: string, run: string])[] {
  const found = markIn(name);
  return found === null || run === null ? [] : [[found.mark, run]];
}

/** Asks all services at the same time. */
async function removeAll(
  services: readonly Service[],
  isOurs: (name: string) => boolean,
  options: { readonly dryRun: boolean },
  signal: AbortSignal,
): Promise<{ readonly service: string; readonly result: NamedRemoval }[]> {
  const made = services.flatMap(({ name, removeNamed }) => (removeNamed === undefined ? [] : [{ name, removeNamed }]));
  return await Promise.all(
    made.map(async ({ name, removeNamed }) => ({ service: name, result: await removeNamed(isOurs, signal, options) })),
  );
}

function mergeAll(all: readonly NamedRemoval[]): NamedRemoval {
  return {
    removed: all.flatMap(({ removed }) => removed),
    left: all.flatMap(({ left }) => left),
    unknown: all.flatMap(({ unknown }) => unknown),
  };
}

/** A machine that exists, by its tags. */
export interface Tagged {
  readonly host: string | null;
  readonly run: string | null;
}

/** Whether a name is that of an agent of one of the hosts whose machine is not among those that exist. */
export function leftBehind(hosts: readonly string[], existing: readonly Tagged[]): (name: string) => boolean {
  const alive = new Set(existing.flatMap(({ host, run }) => (host === null || run === null ? [] : [`${agentPrefix(host, run)}-`])));
  return (name) =>
    ![...alive].some((prefix) => name.startsWith(prefix)) &&
    hosts.some((host) => name.startsWith(`${host}-`) && /^[0-9a-f]{6}-/.test(name.slice(host.length + 1)));
}

/** ms between two tries of a sweep. */
const between = 15_000;

/**
 * Removes what machines of hosts have left at services, until nothing is left or `patience` is over (ms). `existing`: asked before each
 * try, because a machine may have come meanwhile; null: it is not known completely, and nothing is removed. @throws the reason of `signal`
 */
export async function sweepRegistrations(
  services: readonly Service[],
  hosts: readonly string[],
  existing: () => Promise<readonly Tagged[] | null>,
  { dryRun, patience: most }: { readonly dryRun: boolean; readonly patience: number },
  clock: Clock,
  signal: AbortSignal,
): Promise<readonly { readonly service: string; readonly result: NamedRemoval }[]> {
  const until = clock.now() + most;
  const removed = new Map<string, string[]>();
  for (;;) {
    const there = await existing();
    signal.throwIfAborted();
    const why = 'nobody knows which machines exist, so nothing was removed';
    const all =
      there === null
        ? services.flatMap(({ name, removeNamed }) =>
            removeNamed === undefined ? [] : [{ service: name, result: { removed: [], left: [], unknown: [why] } }],
          )
        : await removeAll(services, leftBehind(hosts, there), { dryRun }, signal);
    for (const { service, result } of all) removed.set(service, [...(removed.get(service) ?? []), ...result.removed]);
    const isDone = all.every(({ result: { left, unknown } }) => left.length === 0 && unknown.length === 0);
    if (isDone || dryRun || there === null || clock.now() >= until)
      return all.map(({ service, result }) => ({ service, result: { ...result, removed: removed.get(service) ?? [] } }));
    await sleep(clock, between, signal);
    signal.throwIfAborted();
  }
}
