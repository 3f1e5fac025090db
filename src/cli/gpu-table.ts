/**
 * The table of `onejob gpus`: one line per GPU with its MIG instances below it if the terminal is wide enough, else several. From
 * 60 columns on no UUID is cut, so that it can be copied into a config or a command.
 */
import { formatTime } from '../base/units.ts';
import type { DeviceView } from '../contract/schema.ts';
import { isSameReset } from '../gpu/finding.ts';
import type { Device, GpuFinding, GpuProcess, Inventory } from '../gpu/inventory.ts';
import { isInMigMode } from '../gpu/mig.ts';
import type { ProcessOwner } from '../gpu/processes.ts';
import { systemClock } from '../system/system-clock.ts';
import { type Colors, cut, hang, printable, table, widthOf } from './text.ts';

/** Owners of processes, by pid; not known for a recording. */
export type Owners = ReadonlyMap<number, ProcessOwner>;

/** By UUID; empty if no daemon answers or none of its pools has devices. */
export type Leases = ReadonlyMap<string, DeviceView>;

interface Page {
  readonly colors: Colors;
  /** null for a pipe. */
  readonly width: number | null;
  readonly owners: Owners;
  readonly leases: Leases;
}

/** `nothing`: the sentence for a host without GPUs. */
export function gpuLines(inventory: Inventory, nothing: string, page: Page): string[] {
  const { devices, findings, complete } = inventory;
  const { colors, width } = page;
  const lines = headLines(inventory);
  if (!complete)
    lines.push(
      ...hang('! ', 'Not all GPUs could be read: the state of GPUs that are not listed is unknown.', width).map(colors.yellow),
    );
  if (devices.length > 0) lines.push(...deviceLines(devices, page));
  else if (findings.every((finding) => finding.level === 'warning') && complete) lines.push(...hang('', nothing, width));
  const held = leaseFindings(page.leases);
  const own = [...devices.flatMap((device) => healthFindings(device, findings)), ...findings];
  const troubles = [...held, ...own.filter((one) => !held.some((other) => isSameReset(other, one)))];
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

/** The first of three forms that fits: everything in one line, holders below, or only what tells devices apart in the line. */
function deviceLines(devices: readonly Device[], page: Page): string[] {
  const { colors, width } = page;
  const rows = devices.map((device) => rowOf(device, page));
  const titles = Object.keys(rows[0]?.cells ?? {}) as Title[];
  const drawn = (which: readonly Title[], cellOf = ({ cells }: Row, title: Title) => cells[title]) =>
    table([which, ...rows.map((row) => which.map((title) => cellOf(row, title)))], null);
  const fits = (lines: readonly string[]) => width === null || lines.every((line) => widthOf(line) <= width);
  const below = (lines: readonly string[], more: (at: number) => readonly string[]) => {
    const [titles = '', ...rest] = lines;
    return [colors.dim(titles), ...rest.flatMap((line, at) => [line, ...more(at).flatMap((text) => hang('    ', text, width))])];
  };
  const holders = (at: number) => (rows[at]?.holding === true ? [colors.dim(`held by ${rows[at].cells['HELD BY']}`)] : []);

  const shown = titles.filter((title) => rows.some(({ cells }) => cells[title] !== ''));
  const whole = drawn(shown);
  if (fits(whole)) return below(whole, () => []);
  const shorter = drawn(shown.filter((title) => title !== 'HELD BY'));
  if (fits(shorter)) return below(shorter, holders);
  const narrow = drawn(['UUID', '#', 'STATE', 'MEMORY'], ({ cells, instance }, title) =>
    title === 'MEMORY' && instance ? `${cells.MIG} ${cells.MEMORY}`.trim() : cells[title],
  );
  return below(narrow, (at) => {
    const row = rows[at];
    if (row === undefined) return [];
    const { MODEL, PCI, CC, MIG, 'FOR JOBS': used } = row.cells;
    const lease = used === '' ? [] : [`for jobs: ${used}`];
    if (row.instance) return [...lease, ...holders(at)];
    const facts = [MODEL, PCI, CC === '' ? '' : `compute ${CC}`, MIG === '' ? '' : `MIG ${MIG}`];
    return [facts.filter((fact) => fact !== '').join(', '), ...lease, ...holders(at)];
  });
}

type Row = ReturnType<typeof rowOf>;
type Title = keyof Row['cells'];

function rowOf(device: Device, { colors, owners, leases }: Page) {
  const { kind, uuid, index, pciId, model, memoryMiB, memoryUsedMiB, computeCapability, health } = device;
  // An instance's line does not repeat what its GPU's line says.
  const instance = kind === 'mig';
  const own = (text: string | null) => (instance || text === null ? '' : printable(text));
  const processes = ownProcesses(device);
  const paint = { ok: colors.green, failed: colors.red, unknown: colors.yellow }[health.state];
  const cells = {
    UUID: instance ? `  ${printable(uuid)}` : printable(uuid),
    '#': index === null ? '' : String(index),
    PCI: own(pciId),
    MODEL: own(model),
    MEMORY: memoryText(memoryUsedMiB, memoryMiB),
    CC: own(computeCapability),
    MIG: migText(device),
    STATE: paint(health.state),
    // Empty if no daemon says what jobs use it for.
    'FOR JOBS': printable(isInMigMode(device) && leases.has(uuid) ? '-' : leaseText(leases.get(uuid))),
    'HELD BY': processes === null ? '?' : processes.length === 0 ? '-' : heldBy(processes, owners),
  };
  return { cells, instance, holding: processes !== null && processes.length > 0 };
}

/** Processes of a device; for a split card those that use none of its instances. */
function ownProcesses({ mig, processes }: Device): readonly GpuProcess[] | null {
  if (mig === null || 'profile' in mig || mig.mode === 'disabled') return processes;
  return processes?.filter(({ gpuInstance }) => gpuInstance === null) ?? null;
}

function migText({ mig }: Device): string {
  if (mig === null) return '';
  if ('profile' in mig) return printable(mig.profile ?? '?');
  const words = { enabled: 'on', disabled: 'off' };
  return mig.pending === null ? words[mig.mode] : `${words[mig.mode]}, ${words[mig.pending]} after a reset`;
}

/** `0.6/79.6 GiB`, without unknown parts. */
function memoryText(used: number | null, total: number | null): string {
  const gib = (mib: number) => (mib / 1024).toFixed(1);
  if (total === null) return used === null ? '?' : `${gib(used)} GiB used`;
  return used === null ? `${gib(total)} GiB` : `${gib(used)}/${gib(total)} GiB`;
}

/** If a device has more holders, the rest are counted. */
const namedAtMost = 2;

/** Computing processes come before those that draw. */
function heldBy(processes: readonly GpuProcess[], owners: Owners): string {
  const sorted = processes.toSorted((a, b) => Number(a.type === 'G') - Number(b.type === 'G'));
  const named = sorted.slice(0, namedAtMost).map((process) => holder(process, owners.get(process.pid)));
  const more = processes.length - named.length;
  return [...named, ...(more > 0 ? [`${more} more`] : [])].join('; ');
}

function holder({ pid, name, type, memoryMiB }: GpuProcess, owner: ProcessOwner | undefined): string {
  const program = printable((name ?? owner?.command ?? 'a process').split('/').at(-1) ?? '');
  const memory = memoryMiB === null ? '' : `, ${memoryMiB < 1024 ? `${memoryMiB} MiB` : `${(memoryMiB / 1024).toFixed(1)} GiB`}`;
  const since = owner === undefined || owner.startedAt === null ? '' : `, since ${formatTime(owner.startedAt, systemClock.wall())}`;
  const who = owner === undefined ? '' : `${owner.user ?? owner.uid ?? 'somebody'}: `;
  return `${who}${program} (pid ${pid}${type === 'G' ? ', display' : ''})${memory}${since}`;
}

/** Problems of a device, except those that are findings too. */
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

/** What jobs use a device for, in a word or two; empty if no daemon says so. */
function leaseText(view: DeviceView | undefined): string {
  if (view === undefined) return '';
  const { state, slot } = view;
  if (state === 'leased' || state === 'free') return slot ?? state;
  return slot === null ? state : `${slot}, ${state}`;
}

/** Why no job gets a device, also for missing devices. Processes of people are in the table. */
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
