/** Looks at this host's GPUs, one look at a time, in bounded time whatever a driver does. A look never fails because of a tool. */
import { abortable } from '../base/abortable.ts';
import { systemClock } from '../system/system-clock.ts';
import { queryAmd } from './amd/query.ts';
import { finding, withFindings } from './finding.ts';
import { createIntelQuery } from './intel/query.ts';
import { type GpuFinding, type Inventory, mergeInventories } from './inventory.ts';
import { queryNvidia } from './nvidia/query.ts';
import { readPci } from './pci.ts';
import { hungHint, type ProbeContext } from './probe-context.ts';
import { createRunner, type ToolRunner, vendorFolders } from './run.ts';
import { type Near, parseLinks, readTopology } from './topology.ts';

export interface LookOptions {
  /** How long ago the look may have begun, in ms; default `maxAge` of the probe. 0: it must begin now. */
  readonly maxAge?: number;
  /** Stops waiting; the look continues for the others. */
  readonly signal?: AbortSignal;
}

export interface Probe extends Disposable {
  /** How close the devices seen last are; always 0 unless `topology` is set. */
  readonly near: Near;
  /** Whether a look is in progress. */
  readonly isLooking: boolean;
  /** The host's GPUs. Rejects only with the reason of an aborted signal, or when the probe is closed. */
  look(options?: LookOptions): Promise<Inventory>;
}

export interface ProbeOptions {
  /** Folders of the tools, as `$PATH`. Not used with `runner`. */
  readonly path: string;
  /** Folders to search after those; default: where vendors put their tools. */
  readonly folders?: readonly string[];
  readonly runner?: ToolRunner;
  /** `/sys` and `/proc`; a test has its own. */
  readonly sys?: string;
  readonly proc?: string;
  /** ms for one call of a tool, or twice what the slowest successful call took, if that is longer. Default 10,000. */
  readonly limit?: number;
  /** ms for each call until one has succeeded, and the maximum. Default 30,000. */
  readonly firstLimit?: number;
  /** Reads which GPUs are close to each other, once for each set of them. */
  readonly topology?: boolean;
  /** ms for which a look is used unless a caller says otherwise. */
  readonly maxAge?: number;
  /** A monotonic clock in ms. */
  readonly now?: () => number;
}

/** A look on its way, or the last one. */
interface Flight {
  readonly begun: number;
  readonly done: Promise<Inventory>;
}

export function createProbe(options: ProbeOptions): Probe {
  return new HostProbe(options);
}

class HostProbe implements Probe {
  readonly #options: ProbeOptions;
  readonly #now: () => number;
  readonly #runner: ToolRunner;
  readonly #closed = new AbortController();
  readonly #queryIntel = createIntelQuery();
  readonly #amdNames = new Map<string, string>();
  /** Looks in a row in which a tool timed out: from 2 on the host's GPUs must not be used. */
  #timeouts = 0;
  near: Near = () => 0;
  /** The GPUs that `near` is for. */
  #placed = '';
  /** ms of the slowest call that ended in its time; null before the first. */
  #slowest: number | null = null;
  #last: Flight | null = null;
  #running: Flight | null = null;
  #next: Promise<Flight> | null = null;

  constructor(options: ProbeOptions) {
    this.#options = options;
    this.#now = options.now ?? systemClock.now;
    this.#runner = options.runner ?? createRunner({ path: [options.path, ...(options.folders ?? vendorFolders)].join(':') });
  }

  get isLooking(): boolean {
    return this.#running !== null;
  }

  async look({ maxAge: age = this.#options.maxAge ?? 1_000, signal }: LookOptions = {}): Promise<Inventory> {
    signal?.throwIfAborted();
    this.#closed.signal.throwIfAborted();
    const isYoung = (flight: Flight): boolean => age > 0 && this.#now() - flight.begun <= age;
    if (this.#last !== null && isYoung(this.#last)) return this.#last.done;
    const running = this.#running;
    const flight = running === null ? (this.#next ?? this.#begin()) : isYoung(running) ? running : this.#follow(running);
    const done = Promise.resolve(flight).then((landing) => landing.done);
    return signal === undefined ? done : abortable(done, signal);
  }

  [Symbol.dispose](): void {
    this.#closed.abort(new Error('the probe is closed'));
  }

  #begin(): Flight {
    const flight: Flight = { begun: this.#now(), done: this.#query() };
    this.#running = flight;
    const land = (landed: Flight | null) => () => {
      this.#running = null;
      this.#last = landed ?? this.#last;
    };
    flight.done.then(land(flight), land(null));
    return flight;
  }

  /** A look that begins after `after`, shared by all who cannot use that one. */
  #follow(after: Flight): Promise<Flight> {
    this.#next ??= after.done
      .catch(() => {})
      .then(() => {
        this.#next = null;
        return this.#begin();
      });
    return this.#next;
  }

  async #query(): Promise<Inventory> {
    const { sys = '/sys', proc = '/proc', topology } = this.#options;
    const hung = new Set<string>();
    const context: ProbeContext = {
      sys,
      proc,
      pci: await readPci(sys),
      has: async (tool) => (await this.#runner.find(tool)) !== null,
      run: async (tool, ...args) => {
        const begun = this.#now();
        const reply = await this.#runner.run(tool, args, { limit: this.#limit(), signal: this.#closed.signal });
        if (reply.hung) hung.add(tool);
        else if (!reply.missing) this.#slowest = Math.max(this.#slowest ?? 0, this.#now() - begun);
        return reply;
      },
    };
    // One vendor after the other: two drivers in trouble at the same time are two causes mixed into one.
    const vendors = [await queryNvidia(context), await queryAmd(context, this.#amdNames), await this.#queryIntel(context)];
    this.#timeouts = hung.size > 0 ? this.#timeouts + 1 : 0;
    const host = mergeInventories(vendors);
    if (topology === true) await this.#readTopology(host, context);
    return withFindings(host, this.#timeouts > 1 ? [keepsHanging([...hung], this.#timeouts)] : []);
  }

  /** Without persistence mode each call wakes every card: with eight of them that takes longer than a hang elsewhere. */
  #limit(): number {
    const { limit = 10_000, firstLimit = 30_000 } = this.#options;
    return this.#slowest === null ? firstLimit : Math.min(firstLimit, Math.max(limit, 2 * this.#slowest));
  }

  async #readTopology({ devices }: Inventory, { run, sys }: ProbeContext): Promise<void> {
    const gpus = devices.filter((device) => device.kind === 'gpu');
    const set = gpus.map(({ uuid, pciId }) => `${uuid} ${pciId}`).join();
    if (set === this.#placed) return;
    const several = gpus.filter((device) => device.vendor === 'nvidia').length > 1;
    const table = several ? await run('nvidia-smi', 'topo', '-m') : null;
    this.near = await readTopology(sys, devices, parseLinks(table?.code === 0 ? table.output : ''));
    this.#placed = set;
  }
}

function keepsHanging(tools: readonly string[], times: number): GpuFinding {
  const names = tools.join(' and ');
  const message = `${names} timed out ${times} times in a row: the GPUs of this host cannot be trusted.`;
  return finding('error', 'tool-keeps-hanging', 'host', message, hungHint(tools[0] ?? ''));
}
