/**
 * `onejob gpus`: the GPUs of this host or of a recording, and their problems. A running daemon adds what jobs use each GPU for, and
 * does `reserve`, `return`, `quarantine`, `clear`, `forget` and `onejob proofs`.
 */
import { userInfo } from 'node:os';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { createClient } from '../api/client.ts';
import { attempt } from '../base/errors.ts';
import { formatTime } from '../base/units.ts';
import type { DeviceAnswer, DeviceChange, DeviceView, ProofView } from '../contract/schema.ts';
import { sleep } from '../core/clock.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { createProbe, type Probe } from '../gpu/probe.ts';
import { ownersOf } from '../gpu/processes.ts';
import { systemClock } from '../system/system-clock.ts';
import { withDaemon } from './connect.ts';
import type { CliContext } from './context.ts';
import { exitCodes } from './exit.ts';
import { gpuLines, type Leases, type Owners } from './gpu-table.ts';
import type { Session } from './session.ts';
import { type Colors, formatAge, hang, plural, printable, redrawn, titledTable } from './text.ts';

export interface GpusFlags {
  readonly from?: string;
  readonly watch?: boolean;
  /** ms; default 5 s. */
  readonly every?: number;
  /** Ends `watch`, for tests. */
  readonly signal?: AbortSignal;
}

/** 1 when a finding is an error, a device has failed, or not all devices could be read. */
export async function showGpus(session: Session, flags: GpusFlags, probe?: Probe): Promise<number> {
  const { path, hostRoot: root } = session.context.environment;
  const places = root === null ? {} : { sys: join(root, 'sys'), proc: join(root, 'proc') };
  using own = flags.from === undefined && probe === undefined ? createProbe({ path, ...places, maxAge: 0 }) : null;
  const host = probe ?? own;
  const look = async (): Promise<Seen> => {
    if (flags.from === undefined && host !== null) {
      const [inventory, leases] = await Promise.all([host.look(), askLeases(session)]);
      return { inventory, leases };
    }
    const { readRecording } = await import('../gpu/recording.ts');
    return { inventory: await readRecording(resolve(session.context.cwd, flags.from ?? '')), leases: new Map() };
  };
  const textOf = ({ inventory, leases }: Seen) => JSON.stringify([inventory, ...leases.values()]);
  let seen = await look();
  await show(session, flags, seen);
  for (let shown = textOf(seen); flags.watch && (await pause(flags)); shown = textOf(seen)) {
    seen = await look();
    if (textOf(seen) !== shown) await show(session, flags, seen);
  }
  return isWell(seen.inventory) ? exitCodes.ok : exitCodes.failed;
}

type Seen = { readonly inventory: Inventory; readonly leases: Leases };

/** Whether to continue. */
async function pause({ every = 5_000, signal }: GpusFlags): Promise<boolean> {
  await sleep(systemClock, every, signal);
  return signal?.aborted !== true;
}

function isWell({ complete, findings, devices }: Inventory): boolean {
  return complete && findings.every(({ level }) => level !== 'error') && devices.every(({ health }) => health.state !== 'failed');
}

async function show({ output }: Session, { from, watch }: GpusFlags, { inventory, leases }: Seen): Promise<void> {
  // A program that reads changes gets each as one JSON value.
  if (output.json || (watch && output.width === null)) {
    const devices = inventory.devices.map((device) => ({ ...device, ...leaseValue(leases.get(device.uuid)) }));
    return output.value({ ...inventory, devices });
  }
  const pids = from === undefined ? inventory.devices.flatMap((device) => device.processes?.map(({ pid }) => pid) ?? []) : [];
  const owners: Owners = ownersOf(pids);
  const lines = gpuLines(inventory, nothingIn(from), { colors: output.colors, width: output.width, owners, leases });
  return watch ? output.write('stdout', `${redrawn(lines)}\n`) : output.print(...lines);
}

function nothingIn(from: string | undefined): string {
  if (from !== undefined) return `No GPUs in ${from}.`;
  return 'No GPUs: the PCI bus (/sys/bus/pci/devices) has no NVIDIA, AMD or Intel card, and no nvidia-smi on the PATH lists one.';
}

/** The daemon's view of each GPU. `patience`: ms that a daemon may take; short, since GPUs must be shown if the daemon hangs. */
export async function askLeases({ place, version }: Session, patience = 2_000): Promise<Leases> {
  const { socket, systemSocket } = await place().catch(() => ({ socket: null, systemSocket: null }));
  for (const path of [socket, systemSocket]) {
    if (path === null) continue;
    try {
      const client = createClient({ socket: path, version, patience });
      const views = await client.devices().finally(() => client.close());
      return new Map(views.map((view) => [view.uuid, view]));
    } catch {
      // Without a usable daemon the host's own answer is complete.
    }
  }
  return new Map();
}

/** What `--json` adds to each device. */
function leaseValue(view: DeviceView | undefined) {
  if (view === undefined) return {};
  const { state, slot, agents, why, until } = view;
  return { lease: { state, slot, agents, why, until } };
}

/** `name`: a UUID or its beginning, or the index or PCI address of a GPU. */
export async function changeDevice(session: Session, name: string, change: DeviceChange): Promise<number> {
  const { output } = session;
  const answer = await withDaemon(session, (client) => client.changeDevice(name, change));
  await output.result(answer, () => changeLines(change, answer, systemClock.wall()).map(printable));
  return exitCodes.ok;
}

/** Login name of the person at the prompt, also under `sudo`; null if it is unknown. */
export function personOf({ variables }: CliContext): string | null {
  const user = attempt(() => userInfo());
  return user && ((user.uid === 0 ? variables.SUDO_USER : undefined) || user.username || null);
}

/** What was done, for a person. `now`: wall clock, ms. */
export function changeLines({ act }: DeviceChange, { uuid, changed, device }: DeviceAnswer, now: number): string[] {
  const busy = (device?.agents.length ?? 0) > 0 ? '; the job that runs on it may finish' : '';
  switch (act) {
    case 'reserve': {
      const until = device?.until ?? null;
      const end = until === null ? 'until you return it' : `until ${formatTime(until, now)} (or until you return it)`;
      const other = device?.state === 'quarantined' && device.why !== null ? [`But ${device.why}`] : [];
      return [`${uuid} is yours ${end}${busy}.`, ...other, `Give it back with "onejob gpus return ${uuid}".`];
    }
    case 'return':
      return [changed ? `${uuid} is given back; it is checked before a job gets it.` : `${uuid} is not reserved.`];
    case 'quarantine':
      return [`${uuid} is in quarantine until you type "onejob gpus clear ${uuid}"${busy}.`];
    case 'clear': {
      if (!changed) return [`${uuid} is not in quarantine.`];
      const why = device?.why ?? null;
      return [`${uuid} is out of quarantine${why === null ? '' : `; but ${why}`}.`];
    }
    case 'forget':
      return [`${uuid} is forgotten.`];
  }
}

/** `device`: a UUID or its beginning, or the index or PCI address of a GPU; null: all. `limit`: only the newest. */
export async function listProofs(session: Session, device: string | null, limit: number): Promise<number> {
  const { output } = session;
  const { newest, hasDevices } = await withDaemon(session, async (client) => {
    const newest = await client.proofs({ device, limit });
    return { newest, hasDevices: newest.length > 0 || (await client.devices()).length > 0 };
  });
  const of = device === null ? '' : ` of ${printable(device)}`;
  const proofs = newest.toReversed();
  const none = hasDevices
    ? `No proofs${of} yet: onejob makes one after each agent that had ${device === null ? 'devices' : 'it'}.`
    : 'No proofs: this host has no device, and onejob makes one after each agent that had devices. "onejob gpus" says where it looked.';
  const lines = () => proofTable(proofs, output.colors, output.width, systemClock.wall());
  await output.list(proofs, none, lines);
  return exitCodes.ok;
}

/** The newest last. In a pipe each line says all; at a terminal the findings are below their line. `now`: wall clock, ms. */
export function proofTable(proofs: readonly ProofView[], colors: Colors, width: number | null, now: number): string[] {
  const rows = proofs.map((proof) => ({
    WHEN: `${formatAge(now - proof.at)} ago`,
    DEVICE: printable(proof.device),
    VERDICT: paint(proof.verdict, colors)(printable(proof.verdict)),
    TOOK: duration(proof.took),
    SLOT: printable(proof.slot),
    AFTER: printable(proof.agent),
    ...(width === null && { FOUND: found(proof) }),
  }));
  const [head = '', ...lines] = titledTable(rows, { colors, width });
  const below = (proof: ProofView | undefined) =>
    width === null || proof === undefined || proof.verdict === 'clean' ? [] : hang('    ', found(proof), width);
  return [head, ...lines.flatMap((line, at) => [line, ...below(proofs[at])])];
}

/** The parts of the evidence that are shown. */
const evidence = z.object({
  message: z.string().nullable().catch(null),
  checks: z.array(z.object({ check: z.string(), result: z.string() })).catch([]),
});

/** The reason for the verdict, or how many checks passed and what the device or host did not report. */
function found(proof: ProofView): string {
  const said = evidence.safeParse(proof.evidence);
  if (!said.success) return '';
  const { message, checks } = said.data;
  if (message !== null) return printable(message);
  const silent = checks.filter(({ result }) => result === 'unchecked').map(({ check }) => check);
  const well = checks.filter(({ result }) => result === 'ok').length;
  return printable(`${plural(well, 'check')} passed${silent.length === 0 ? '' : `, not reported: ${silent.join(', ')}`}`);
}

function paint(verdict: string, colors: Colors): (text: string) => string {
  if (verdict === 'clean') return colors.green;
  return verdict === 'dirty' || verdict === 'host' ? colors.red : colors.yellow;
}

/** `0.3s`: most proofs take less than a second. */
function duration(ms: number): string {
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)}s` : formatAge(ms);
}
