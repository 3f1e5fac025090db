/**
 * The NVIDIA GPUs of one host, from all sources. It lists a device only under a UUID that was printed. It considers none gone
 * because a tool did not finish: the set is complete only when every expected GPU is either listed or reported as lost.
 */

import { clip, distinct, finding } from '../finding.ts';
import { type Device, type GpuFinding, type Inventory, inOrder } from '../inventory.ts';
import { isInMigMode } from '../mig.ts';
import { normalPci } from '../pci.ts';
import { builtInTables } from '../tables.ts';
import { gpuDevice, judgeDevice, migDevice } from './device.ts';
import { reboot } from './failures.ts';
import { readProcGpus } from './list.ts';
import { fillUp, type GpuReading, type MigReading } from './reading.ts';
import { type NvidiaParts, sourcesOf, type ToolSource } from './sources.ts';
import { cudaVersion, driverVersion, gpuUuid, isUnread, migUuid, nvidiaText, readProcVersion } from './values.ts';

/** Never throws, whatever the outputs are. */
export function nvidiaInventory(parts: NvidiaParts): Inventory {
  const module = readProcVersion(parts.procVersion ?? '');
  const sources = sourcesOf(parts, module);
  const { gpus, findings: clashes } = join(sources, (parts.procGpus ?? []).flatMap(readProcGpus));
  const complaints = sources.flatMap((source) => source.findings);
  const set = judgeSet(parts.pciIds, sources, gpus);
  const made = gpus.map((gpu) => devicesOf(gpu, set.lost));
  const devices = made.flatMap((each) => each.devices);
  const byUuid = Map.groupBy(devices, ({ uuid }) => uuid);
  const uncertain = [...clashes, ...made.flatMap((each) => each.uncertain), ...twins(byUuid)];
  const driver = firstVersion([...sources.map((each) => each.driver), module], driverVersion);
  const cudas = sources.map((each) => each.cuda);
  const tool = firstVersion(cudas, cudaVersion);
  const cuda = tool ?? cudaOfDriver(driver);
  const findings = [...complaints, ...set.findings, ...uncertain, ...libcuda(sources), ...made.flatMap((each) => each.findings)];
  return {
    complete: set.complete && uncertain.length === 0,
    driver,
    cuda,
    cudaFrom: cuda === null ? null : tool === null ? 'driver' : 'tool',
    devices: inOrder([...byUuid.values()].flatMap(([first]) => first ?? [])),
    findings: distinct(set.isEmpty ? findings.filter((each) => !needless.has(each.code)) : findings),
  };
}

/** Findings that do not matter on a host that has no GPU. */
const needless: ReadonlySet<string> = new Set(['tool-missing', 'no-devices', 'driver-not-loaded']);

/** `isEmpty`: there is certainly no GPU. `lost`: PCI addresses of GPUs that exist but that nvidia-smi no longer lists. */
function judgeSet(pciIds: NvidiaParts['pciIds'], sources: readonly ToolSource[], gpus: readonly Joined[]) {
  const complaints = sources.flatMap((source) => source.findings);
  const onBus = pciIds?.map(normalPci).filter((pciId) => pciId !== null) ?? null;
  const count = onBus?.length ?? null;
  const listed = gpus.filter((gpu) => gpu.isListed);
  const hung = complaints.some((each) => each.code === 'tool-hung');
  if (listed.length === 0) {
    const isEmpty = count === 0 && !hung && gpus.length === 0;
    const unseen = onBus === null || count === 0 ? [] : [unseenFinding(onBus)];
    return { complete: isEmpty, isEmpty, lost: new Set<string>(), findings: unseen };
  }
  const best = sources.find((each) => each.gpus.length > 0);
  // A better source was asked and listed nothing: it failed.
  const whole = best?.whole === true && sources[0] === best;
  const nameless = listed.filter((gpu) => gpu.uuid === null).flatMap(namelessFindings);
  const seen = new Set(listed.map((gpu) => gpu.pciId));
  const expected = [...new Set([...(onBus ?? []), ...gpus.flatMap((gpu) => gpu.pciId ?? [])])];
  const named = new Set(complaints.flatMap((each) => (each.level === 'error' ? [each.subject] : [])));
  const missing = seen.has(null) ? [] : expected.filter((pciId) => !seen.has(pciId));
  // One card off the bus makes the tool fail for all of them, but each was queried separately, or is named in its error.
  const isNamed = (pciId: string) => best?.certain.has(pciId) === true || named.has(pciId);
  const isAccounted = onBus !== null && (best?.attached ?? 0) <= expected.length && expected.every(isNamed);
  const findings = [...nameless, ...(whole ? missing.filter((pciId) => !named.has(pciId)).map(lostFinding) : [])];
  if (whole && seen.has(null) && count !== null && count > listed.length) {
    const message = `${count} NVIDIA GPUs are on the PCI bus, but nvidia-smi lists ${listed.length}.`;
    findings.push(finding('error', 'gpu-lost', 'host', message, reboot));
  }
  return {
    complete: (whole || isAccounted) && nameless.length === 0 && !hung,
    isEmpty: false,
    lost: new Set(whole || isAccounted ? missing : []),
    findings,
  };
}

function unseenFinding(onBus: readonly string[]): GpuFinding {
  const isOne = onBus.length === 1;
  const who = isOne ? 'An NVIDIA GPU is' : `${onBus.length} NVIDIA GPUs are`;
  const message = `${who} on the PCI bus (${clip(onBus.join(', '))}), but onejob could not read anything about ${isOne ? 'it' : 'them'}.`;
  return finding('error', 'gpus-unseen', 'host', message);
}

function lostFinding(pciId: string): GpuFinding {
  const message = `${pciId} is on the PCI bus, but nvidia-smi does not list it: its driver has lost it.`;
  return finding('error', 'gpu-lost', pciId, message, reboot);
}

function namelessFindings({ pciId, reading }: Joined): readonly GpuFinding[] {
  const { index, uuid } = reading.facts;
  const who = pciId ?? (index === undefined ? 'A GPU' : `GPU ${index}`);
  // It has a problem in place of each value, also of its UUID.
  if (reading.trouble !== null) return judgeDevice(reading, who).findings;
  if (isUnread(uuid))
    return [finding('error', 'gpu-unknown', pciId ?? 'host', `${who} does not answer: its UUID reads "${uuid}".`, reboot)];
  const name = nvidiaText(reading.facts.model) ?? 'A GPU';
  const message = `${clip(name)}${pciId === null ? '' : ` at ${pciId}`} has no UUID in this output, and onejob grants no device without one.`;
  return [finding('error', 'no-uuid', pciId ?? 'host', message, 'Record "nvidia-smi -q -x" and "nvidia-smi -L" as well.')];
}

/** A GPU with its instances. `uncertain`: findings that leave the set of devices uncertain. */
function devicesOf({ uuid, pciId, reading, instances, isListed }: Joined, lost: ReadonlySet<string>) {
  if (uuid === null) return { devices: [], findings: [], uncertain: [] };
  const gpu = gpuDevice(reading, uuid);
  const isLost = !isListed && pciId !== null && lost.has(pciId);
  const health = { ...gpu.device.health, state: 'failed' as const, reasons: ['is lost: nvidia-smi no longer lists it'] };
  const device = isLost ? { ...gpu.device, health } : gpu.device;
  const made = instances.flatMap(({ reading: instance, isSeen }) => {
    const name = migUuid(instance.uuid);
    return name === null ? [] : [migDevice(instance, name.uuid, device, isSeen)];
  });
  const uncertain: GpuFinding[] = [];
  const doubt = (code: string, message: string, hint: string) => uncertain.push(finding('error', code, uuid, message, hint));
  const nameless = instances.length - made.length;
  if (nameless > 0) {
    const which = nameless === 1 ? '1 MIG instance' : `${nameless} MIG instances`;
    const message = `${which} of ${uuid} ${nameless === 1 ? 'has' : 'have'} no UUID in this output and cannot be used.`;
    doubt('mig-uuids-unknown', message, 'Record "nvidia-smi -L" as well.');
  }
  const isEmpty = instances.length === 0 && isInMigMode(device);
  const seen = instances.filter((each) => each.isSeen).length;
  if (reading.depth === 'state' && seen < instances.length) {
    const message = `Two outputs of nvidia-smi do not list the same MIG instances of ${uuid}: the layout changed in between.`;
    doubt('mig-changed', message, 'Try again.');
  }
  const message = `${uuid}: MIG is on, but there are no instances: it cannot be used as a whole or in part.`;
  const hint =
    'Create instances (nvidia-smi mig -cgi PROFILE -C), which do not outlive a reboot, or turn MIG off (nvidia-smi -mig 0).';
  const idle = finding('warning', 'mig-empty', uuid, message, hint);
  return {
    devices: [device, ...made.map((each) => each.device)],
    findings: [...gpu.findings, ...(isEmpty ? [idle] : []), ...made.flatMap((each) => each.findings)],
    uncertain,
  };
}

/** Findings about UUIDs that several devices have. */
function twins(byUuid: ReadonlyMap<string, readonly Device[]>): GpuFinding[] {
  return [...byUuid].flatMap(([uuid, same]) => {
    const message = `${uuid} was printed for two devices: the output is masked or damaged.`;
    return same.length < 2 ? [] : [finding('error', 'duplicate-uuid', uuid, message)];
  });
}

/** The tool did not find libcuda. Jobs use the host's, so they will not find it either. */
function libcuda(sources: readonly ToolSource[]): GpuFinding[] {
  if (!sources.some(({ cuda }) => /^\W*not found/i.test(cuda ?? ''))) return [];
  const message = 'nvidia-smi finds no libcuda on this host: jobs get that library from the host, so CUDA will not start in them.';
  const hint = "Install the driver's compute libraries (libcuda1, libnvidia-compute-…).";
  return [finding('warning', 'libcuda-missing', 'host', message, hint)];
}

function firstVersion(texts: readonly (string | null)[], parse: (text: string | null) => string | null): string | null {
  return texts.map(parse).find((version) => version !== null) ?? null;
}

/** The newest CUDA that this driver can certainly run, for tools that do not report it; null below the first branch. */
function cudaOfDriver(driver: string | null): string | null {
  const branch = driver === null ? 0 : Number.parseInt(driver, 10);
  return builtInTables.branches.findLast((row) => branch >= row.driver)?.cuda ?? null;
}

/** A GPU as all outputs together describe it. */
interface Joined {
  readonly uuid: string | null;
  readonly pciId: string | null;
  readonly reading: GpuReading;
  /** Its MIG instances by index, or by ids where that is missing; `isSeen` when more than their names was read. */
  readonly instances: readonly { readonly reading: MigReading; readonly isSeen: boolean }[];
  /** Whether nvidia-smi listed it; false for one that only the driver's own files contain. */
  readonly isListed: boolean;
}

interface Entry {
  uuid: string | null;
  pciId: string | null;
  readings: { readonly reading: GpuReading; readonly kind: ToolSource['kind'] | 'proc' }[];
}

/**
 * Joins the readings of the same GPU from several outputs: by UUID, else by PCI address. A finding here means that the set of
 * devices is uncertain.
 */
function join(sources: readonly ToolSource[], proc: readonly GpuReading[]) {
  const findings: GpuFinding[] = [];
  const entries: Entry[] = [];
  const add = (reading: GpuReading, kind: ToolSource['kind'] | 'proc') => {
    const uuid = gpuUuid(reading.facts.uuid);
    const pciId = normalPci(nvidiaText(reading.facts.pciId) ?? '');
    // The driver's own files are about the card at that address, whatever UUID a masked recording gives it.
    const isSame = (each: Entry) => uuid === null || each.uuid === null || kind === 'proc';
    const entry =
      entries.find((each) => uuid !== null && each.uuid === uuid) ??
      entries.find((each) => pciId !== null && each.pciId === pciId && isSame(each)) ??
      entries.find((each) => uuid === null && pciId === null && hasIndex(each, reading.facts.index));
    if (entry === undefined) {
      entries.push({ uuid, pciId, readings: [{ reading, kind }] });
      return;
    }
    const twice = entry.readings.some((each) => each.kind === kind && placeOf(each.reading) !== placeOf(reading));
    if (twice && uuid !== null) {
      const where = [entry.pciId, pciId].filter((each) => each !== null).join(' and ');
      const message = `${uuid} was printed for two GPUs${where === '' ? '' : ` (${where})`}: the output is masked or damaged.`;
      findings.push(finding('error', 'duplicate-uuid', uuid, message));
      return;
    }
    entry.uuid ??= uuid;
    entry.pciId ??= pciId;
    entry.readings.push({ reading, kind });
  };
  for (const { kind, gpus } of sources) for (const gpu of gpus) add(gpu, kind);
  for (const gpu of proc) add(gpu, 'proc');
  findings.push(...differences(sources), ...samePlace(entries));
  return { gpus: entries.map(joined), findings };
}

function hasIndex({ readings }: Entry, index: string | undefined): boolean {
  return index !== undefined && readings.some((each) => each.reading.facts.index === index);
}

function placeOf({ facts }: GpuReading): string | undefined {
  return normalPci(nvidiaText(facts.pciId) ?? '') ?? facts.index;
}

function joined({ uuid, pciId, readings }: Entry): Joined {
  const merged: GpuReading = readings
    .map((each) => each.reading)
    .reduce((all, each) => ({
      facts: fillUp(all.facts, each.facts),
      instances: all.instances,
      processes: all.processes ?? each.processes,
      trouble: all.trouble ?? each.trouble,
      depth: each.depth === 'state' ? each.depth : all.depth,
    }));
  const instances = new Map<string, { reading: MigReading; isSeen: boolean }>();
  for (const { reading, kind } of readings) {
    for (const each of reading.instances) {
      const key = nvidiaText(each.index) ?? `${each.gpuInstance}/${each.computeInstance}`;
      const known = instances.get(key);
      instances.set(key, {
        reading: known === undefined ? each : fillUp(known.reading, each),
        isSeen: kind !== 'list' || known?.isSeen === true,
      });
    }
  }
  const inOrder = [...instances.values()].sort((a, b) => Number(a.reading.index) - Number(b.reading.index));
  return {
    uuid,
    pciId,
    reading: { ...merged, instances: inOrder.map((each) => each.reading) },
    instances: inOrder,
    isListed: readings.some((each) => each.kind !== 'proc'),
  };
}

/** Complete lists that do not contain the same GPUs: something changed between the two calls. */
function differences(sources: readonly ToolSource[]): GpuFinding[] {
  const uuidsOf = ({ gpus }: ToolSource) => new Set(gpus.flatMap((gpu) => gpuUuid(gpu.facts.uuid) ?? []));
  const lists = sources.filter((source) => source.whole).map(uuidsOf);
  const [first, ...others] = lists.filter((uuids) => uuids.size > 0);
  const odd = others.flatMap((other) => (first === undefined ? [] : [...first.symmetricDifference(other)]));
  if (odd.length === 0) return [];
  const message = `Two outputs of nvidia-smi do not list the same GPUs (${clip([...new Set(odd)].join(', '))}): something changed in between, or they come from different hosts.`;
  return [finding('error', 'sources-differ', 'host', message, 'Try again.')];
}

function samePlace(entries: readonly Entry[]): GpuFinding[] {
  const places = entries.flatMap((entry) => entry.pciId ?? []);
  return [...new Set(places.filter((pciId, at) => places.indexOf(pciId) !== at))].map((pciId) =>
    finding('error', 'duplicate-pci', pciId, `Two GPUs have the PCI address ${pciId}: the output is masked or damaged.`),
  );
}
