/**
 * What `onejob gpus` draws: one line per GPU with its MIG instances below it where the terminal is wide enough, else several.
 * From 60 columns on no UUID is cut, for it is what is copied from here into a config or a command.
 */
import type { DeviceView } from '../api/device-schema.ts';
import type { Device, GpuFinding, GpuProcess, Inventory } from '../gpu/inventory.ts';
import { formatTime, type ProcessOwner } from '../gpu/processes.ts';
import { type Colors, cut, hang, printable, table, widthOf } from './text.ts';

/** Who owns a process, where that is known: on this host, not in a recording. */
export type Owners = ReadonlyMap<number, ProcessOwner>;

/** By UUID; none where no daemon answers, or none of its pools has devices. */
export type Leases = ReadonlyMap<string, DeviceView>;

interface Page {
  readonly colors: Colors;
  /** null for a pipe, where nothing is cut. */
  readonly width: number | null;
  readonly owners: Owners;
  readonly leases: Leases;
}

/** `nothing`: the sentence for a host without GPUs. */
export function gpuLines(inventory: Inventory, nothing: string, page: Page): string[] {
  const { devices, findings, complete } = inventory;
  const { colors, width } = page;
  const lines = [...headLines(inventory)];
  if (!complete)
    lines.push(
      ...hang('! ', 'Not all GPUs could be read: the state of GPUs that are not listed is unknown.', width).map(colors.yellow),
    );
  if (devices.length > 0) lines.push(...deviceLines(devices, page));
  else if (findings.every((finding) => finding.level === 'warning') && complete) lines.push(...hang('', nothing, width));
  const troubles = [...leaseFindings(page.leases), ...devices.flatMap((device) => healthFindings(device, findings)), ...findings];
  if (troubles.length > 0) lines.push(...(lines.length === 0 ? [] : ['']), ...troubles.flatMap((each) => findingLines(each, page)));
  return lines.map((line) => cut(line, width));
}

function headLines({ driver, cuda, cudaFrom }: Inventory): string[] {
  const said = [
    ...(driver === null ? [] : [`driver ${driver}`]),
    ...(cuda === null ? [] : [`CUDA up to ${cuda}${cudaFrom === 'driver' ? ' (by the driver)' : ''}`]),
  ];
  return said.length === 0 ? [] : [printable(said.join(', '))];
}

/** The first of three forms that fits: all in one line, who holds it below, or only what tells devices apart in a line. */
function deviceLines(devices: readonly Device[], page: Page): string[] {
  const { colors, width } = page;
  const rows = devices.map((device) => rowOf(device, page));
  const columns = [
    { title: 'UUID', cells: rows.map(({ uuid }) => uuid) },
    { title: '#', cells: rows.map(({ index }) => index) },
    { title: 'PCI', cells: rows.map(({ pci }) => pci) },
    { title: 'MODEL', cells: rows.map(({ model }) => model) },
    { title: 'MEMORY', cells: rows.map(({ memory }) => memory) },
    { title: 'CC', cells: rows.map(({ compute }) => compute) },
    { title: 'MIG', cells: rows.map(({ mig }) => mig) },
    { title: 'STATE', cells: rows.map(({ state }) => state) },
    { title: 'FOR JOBS', cells: rows.map(({ lease }) => lease) },
    { title: 'HELD BY', cells: rows.map(({ held }) => held) },
  ];
  // What no device has is no column.
  const shown = columns.filter(({ cells }) => cells.some((cell) => cell !== ''));
  const drawn = (which: typeof columns) =>
    table([which.map(({ title }) => title), ...rows.map((_, at) => which.map(({ cells }) => cells[at] ?? ''))], null);
  const fits = (lines: readonly string[]) => width === null || lines.every((line) => widthOf(line) <= width);
  const below = (lines: readonly string[], more: (at: number) => readonly string[]) => {
    const [titles = '', ...rest] = lines;
    return [colors.dim(titles), ...rest.flatMap((line, at) => [line, ...more(at).flatMap((text) => hang('    ', text, width))])];
  };
  const holders = (at: number) => (rows[at]?.holding === true ? [colors.dim(`held by ${rows[at].held}`)] : []);

  const whole = drawn(shown);
  if (fits(whole)) return below(whole, () => []);
  const shorter = drawn(shown.filter(({ title }) => title !== 'HELD BY'));
  if (fits(shorter)) return below(shorter, holders);
  const narrow = drawn([
    { title: 'UUID', cells: rows.map(({ uuid }) => uuid) },
    { title: '#', cells: rows.map(({ index }) => index) },
    { title: 'STATE', cells: rows.map(({ state }) => state) },
    { title: 'MEMORY', cells: rows.map(({ memory, instance, mig }) => (instance ? `${mig} ${memory}`.trim() : memory)) },
  ]);
  return below(narrow, (at) => {
    const row = rows[at];
    if (row === undefined) return [];
    const lease = row.lease === '' ? [] : [`for jobs: ${row.lease}`];
    if (row.instance) return [...lease, ...holders(at)];
    const facts = [row.model, row.pci, row.compute === '' ? '' : `compute ${row.compute}`, row.mig === '' ? '' : `MIG ${row.mig}`];
    return [facts.filter((fact) => fact !== '').join(', '), ...lease, ...holders(at)];
  });
}

function rowOf(device: Device, { colors, owners, leases }: Page) {
  const { kind, uuid, index, pciId, model, memoryMiB, memoryUsedMiB, computeCapability, health } = device;
  // What an instance has of its GPU stands in the line above.
  const instance = kind === 'mig';
  const own = (text: string | null) => (instance || text === null ? '' : printable(text));
  const processes = ownProcesses(device);
  const paint = { ok: colors.green, failed: colors.red, unknown: colors.yellow }[health.state];
  return {
    instance,
    uuid: instance ? `  ${printable(uuid)}` : printable(uuid),
    index: index === null ? '' : String(index),
    pci: own(pciId),
    model: own(model),
    memory: memoryText(memoryUsedMiB, memoryMiB),
    compute: own(computeCapability),
    mig: migText(device),
    state: paint(health.state),
    // What it is to jobs; empty where no daemon says so.
    lease: printable(isSplit(device) && leases.has(uuid) ? '-' : leaseText(leases.get(uuid))),
    held: processes === null ? '?' : processes.length === 0 ? '-' : heldBy(processes, owners),
    holding: processes !== null && processes.length > 0,
  };
}

/** Of a card that is split, those that stand beside none of its instances. */
function ownProcesses({ mig, processes }: Device): readonly GpuProcess[] | null {
  if (mig === null || 'profile' in mig || mig.mode === 'disabled') return processes;
  return processes?.filter(({ gpuInstance }) => gpuInstance === null) ?? null;
}

/** Whether its instances are what jobs get. */
function isSplit({ kind, mig }: Device): boolean {
  return kind === 'gpu' && mig !== null && 'mode' in mig && mig.mode === 'enabled';
}

function migText({ mig }: Device): string {
  if (mig === null) return '';
  if ('profile' in mig) return printable(mig.profile ?? '?');
  const words = { enabled: 'on', disabled: 'off' };
  return mig.pending === null ? words[mig.mode] : `${words[mig.mode]}, ${words[mig.pending]} after a reset`;
}

/** `0.6/79.6 GiB`; without what is not known. */
function memoryText(used: number | null, total: number | null): string {
  const gib = (mib: number) => (mib / 1024).toFixed(1);
  if (total === null) return used === null ? '?' : `${gib(used)} GiB used`;
  return used === null ? `${gib(total)} GiB` : `${gib(used)}/${gib(total)} GiB`;
}

/** How many holders of a device are named; more are counted. */
const namedAtMost = 2;

/** What computes comes before what draws. */
function heldBy(processes: readonly GpuProcess[], owners: Owners): string {
  const sorted = processes.toSorted((a, b) => Number(a.type === 'G') - Number(b.type === 'G'));
  const named = sorted.slice(0, namedAtMost).map((process) => holder(process, owners.get(process.pid)));
  const more = processes.length - named.length;
  return [...named, ...(more > 0 ? [`${more} more`] : [])].join('; ');
}

function holder({ pid, name, type, memoryMiB }: GpuProcess, owner: ProcessOwner | undefined): string {
  const program = printable((name ?? owner?.command ?? 'a process').split('/').at(-1) ?? '');
  const memory = memoryMiB === null ? '' : `, ${memoryMiB < 1024 ? `${memoryMiB} MiB` : `${(memoryMiB / 1024).toFixed(1)} GiB`}`;
  const since = owner === undefined || owner.startedAt === null ? '' : `, since ${formatTime(owner.startedAt, Date.now())}`;
  const who = owner === undefined ? '' : `${owner.user ?? owner.uid ?? 'somebody'}: `;
  return `${who}${program} (pid ${pid}${type === 'G' ? ', display' : ''})${memory}${since}`;
}

/** What is wrong with a device, unless a finding says the same with a hint. */
function healthFindings({ uuid, pciId, health }: Device, findings: readonly GpuFinding[]): GpuFinding[] {
  const own = findings.filter(({ subject }) => subject === uuid || subject === pciId);
  return health.reasons
    .filter((reason) => !own.some(({ message }) => message.includes(reason)))
    .map((message) => ({ level: 'error', code: 'unhealthy', subject: uuid, message, hint: null }));
}

function findingLines({ level, subject, message, hint }: GpuFinding, { colors, width }: Page): string[] {
  const paint = level === 'error' ? colors.red : colors.yellow;
  const about = subject === 'host' || message.includes(subject) ? message : `${subject}: ${message}`;
  const advice = hint === null ? [] : hang('  -> ', printable(hint), width);
  return [...hang('! ', printable(about), width).map(paint), ...advice];
}

/** What a job's view of a device is in a word or two; empty where no daemon says anything. */
function leaseText(view: DeviceView | undefined): string {
  if (view === undefined) return '';
  const { state, slot } = view;
  if (state === 'leased' || state === 'free') return slot ?? state;
  return slot === null ? state : `${slot}, ${state}`;
}

/** Devices that no job gets and why, also those that are not there any more. A person's process stands in the table. */
function leaseFindings(leases: Leases): GpuFinding[] {
  return [...leases.values()].flatMap(({ uuid, parent, state, why, hint }): GpuFinding[] => {
    const isOwn = parent === null || leases.get(parent)?.why !== why;
    if (why === null || !isOwn) return [];
    if (state === 'missing' || state === 'quarantined') return [{ level: 'error', code: state, subject: uuid, message: why, hint }];
    return state === 'reserved' || state === 'elsewhere'
      ? [{ level: 'warning', code: state, subject: uuid, message: why, hint }]
      : [];
  });
}
