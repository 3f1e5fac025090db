/** Joins the readings of the same GPU from several outputs: by UUID, else by PCI address. */
import { clip, finding } from '../finding.ts';
import type { GpuFinding } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { fillUp, type GpuReading, type MigReading } from './reading.ts';
import type { Source } from './sources.ts';
import { gpuUuid, said } from './values.ts';

export interface Joined {
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
  readings: { readonly reading: GpuReading; readonly kind: Source['kind'] | 'proc' }[];
}

/** A finding here means that the set of devices is uncertain. */
export function join(sources: readonly Source[], proc: readonly GpuReading[]) {
  const findings: GpuFinding[] = [];
  const entries: Entry[] = [];
  const add = (reading: GpuReading, kind: Source['kind'] | 'proc') => {
    const uuid = gpuUuid(reading.facts.uuid);
    const pciId = normalPci(said(reading.facts.pciId) ?? '');
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
  return normalPci(said(facts.pciId) ?? '') ?? facts.index;
}

function joined({ uuid, pciId, readings }: Entry): Joined {
  const merged = readings
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
      const key = said(each.index) ?? `${each.gpuInstance}/${each.computeInstance}`;
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
function differences(sources: readonly Source[]): GpuFinding[] {
  const uuidsOf = ({ gpus }: Source) => new Set(gpus.flatMap((gpu) => gpuUuid(gpu.facts.uuid) ?? []));
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
