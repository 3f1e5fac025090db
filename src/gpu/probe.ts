/** Looks at this host's GPUs, one look at a time, in bounded time whatever a driver does. A look never fails because of a tool. */
import { abortable } from '../base/abortable.ts';
import { systemClock } from '../system/system-clock.ts';
import { askAmd } from './amd/ask.ts';
import { type Asking, hungHint } from './asking.ts';
import { finding, withFindings } from './finding.ts';
import { createIntel } from './intel/intel.ts';
import { type GpuFinding, type Inventory, mergeInventories } from './inventory.ts';
import { askNvidia } from './nvidia/ask.ts';
import { readPci } from './pci.ts';
import { createRunner, type ToolRunner, vendorFolders } from './run.ts';
import { type Near, parseLinks, readTopology } from './topology.ts';

export interface LookOptions {
  /** How long ago the look may have begun, in ms; default `maxAge` of the probe. 0: it must begin now. */
  readonly maxAge?: number;
  /** Stops waiting; the look continues for the others. */
  readonly signal?: AbortSignal;
}

export type Probe = ReturnType<typeof createProbe>;

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

interface Flight {
  readonly begun: number;
  readonly done: Promise<Inventory>;
}

export function createProbe(options: ProbeOptions) {
  const { sys = '/sys', proc = '/proc', folders = vendorFolders, limit = 10_000, firstLimit = 30_000, maxAge = 1_000 } = options;
  const now = options.now ?? systemClock.now;
  const runner = options.runner ?? createRunner({ path: [options.path, ...folders].join(':') });
  const closed = new AbortController();
  const askIntel = createIntel();
  const amdNames = new Map<string, string>();
  /** Looks in a row in which a tool timed out: from 2 on the host's GPUs must not be used. */
  let timeouts = 0;
  let near: Near = () => 0;
  let placed = '';
  /** ms of the slowest call that ended in its time; null before the first. */
  let slowest: number | null = null;
  let last: Flight | null = null;
  let running: Flight | null = null;
  let next: Promise<Flight> | null = null;

  // Without persistence mode each call wakes every card: with eight of them that takes longer than a hang elsewhere.
  const limitNow = () => (slowest === null ? firstLimit : Math.min(firstLimit, Math.max(limit, 2 * slowest)));

  const ask = async (): Promise<Inventory> => {
    const hung = new Set<string>();
    const asking: Asking = {
      sys,
      proc,
      pci: await readPci(sys),
      has: async (tool) => (await runner.find(tool)) !== null,
      async run(tool, ...args) {
        const begun = now();
        const reply = await runner.run(tool, args, { limit: limitNow(), signal: closed.signal });
        if (reply.hung) hung.add(tool);
        else if (!reply.missing) slowest = Math.max(slowest ?? 0, now() - begun);
        return reply;
      },
    };
    // One vendor after the other: two drivers in trouble at the same time are two causes mixed into one.
    const found = [await askNvidia(asking), await askAmd(asking, amdNames), await askIntel(asking)];
    timeouts = hung.size > 0 ? timeouts + 1 : 0;
    const merged = mergeInventories(found);
    if (options.topology === true) await findNear(merged, asking);
    return withFindings(merged, timeouts > 1 ? [keepsHanging([...hung], timeouts)] : []);
  };

  const findNear = async ({ devices }: Inventory, asking: Asking): Promise<void> => {
    const gpus = devices.filter((device) => device.kind === 'gpu');
    const set = gpus.map(({ uuid, pciId }) => `${uuid} ${pciId}`).join();
    if (set === placed) return;
    const several = gpus.filter((device) => device.vendor === 'nvidia').length > 1;
    const table = several ? await asking.run('nvidia-smi', 'topo', '-m') : null;
    near = await readTopology(sys, devices, parseLinks(table?.code === 0 ? table.output : ''));
    placed = set;
  };

  const begin = (): Flight => {
    const flight: Flight = { begun: now(), done: ask() };
    running = flight;
    const land = (landed: Flight | null) => () => {
      running = null;
      last = landed ?? last;
    };
    flight.done.then(land(flight), land(null));
    return flight;
  };

  /** A look that begins after `after`, shared by all who cannot use that one. */
  const follow = (after: Flight): Promise<Flight> => {
    next ??= after.done
      .catch(() => {})
      .then(() => {
        next = null;
        return begin();
      });
    return next;
  };

  const young = (flight: Flight | null, age: number): flight is Flight => flight !== null && now() - flight.begun <= age;

  return {
    /** How close the devices seen last are; always 0 unless `topology` is set. */
    get near() {
      return near;
    },
    /** Whether a look is in progress. */
    get isLooking() {
      return running !== null;
    },
    /** The host's GPUs. Rejects only with the reason of an aborted signal, or when the probe is closed. */
    async look({ maxAge: age = maxAge, signal }: LookOptions = {}): Promise<Inventory> {
      signal?.throwIfAborted();
      closed.signal.throwIfAborted();
      if (age > 0 && young(last, age)) return last.done;
      const flight = running === null ? (next ?? begin()) : age > 0 && young(running, age) ? running : follow(running);
      const done = Promise.resolve(flight).then((one) => one.done);
      return signal === undefined ? done : abortable(done, signal);
    },
    [Symbol.dispose]() {
      closed.abort(new Error('the probe is closed'));
    },
  };
}

function keepsHanging(tools: readonly string[], times: number): GpuFinding {
  const names = tools.join(' and ');
  const message = `${names} timed out ${times} times in a row: the GPUs of this host cannot be trusted.`;
  return finding('error', 'tool-keeps-hanging', 'host', message, hungHint(tools[0] ?? ''));
}
