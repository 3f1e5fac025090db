/**
 * `nvidia-smi -q`: the same as `-q -x`, written for people. Known by labels and their indentation, which change between
 * drivers less than the table does. It has no end mark: what shows that it is whole is each GPU's list of processes, which
 * comes near the end of its block.
 */
import { type GpuField, type MigField, type ProcessField, textPlaces } from './fields.ts';
import { type GpuReading, nothingRead, type Reading } from './reading.ts';
import { cudaVersion, driverVersion, isUsualUuid, newer, type Trouble, troubleIn } from './values.ts';

/** Whether such an output is in the text. */
export function looksLikeQueryText(text: string): boolean {
  return /^=+NVSMI LOG=+[ \t]*$/m.test(text) || (/^Attached GPUs[ \t]*:/m.test(text) && /^GPU [0-9A-Fa-f]{4,8}:/m.test(text));
}

interface Block {
  facts: { [K in GpuField]?: string };
  instances: { [K in MigField]?: string }[];
  processes: { [K in ProcessField]?: string }[] | null;
  trouble: Trouble | null;
  /** Whether its processes were reached. */
  reached: boolean;
}

/** Never throws. */
export function readQueryText(text: string): Reading {
  const header = new Map<string, string>();
  const blocks: Block[] = [];
  const above: { indent: number; label: string }[] = [];
  const rest: string[] = [];
  const lines = text.split('\n');
  for (const [at, raw] of lines.entries()) {
    const line = raw.trimEnd();
    const label = line.trim();
    if (label === '' || /^=+NVSMI LOG=+$/.test(label)) continue;
    const indent = line.length - line.trimStart().length;
    const gpu = indent === 0 ? /^GPU (\S{1,40})$/.exec(label)?.[1] : undefined;
    if (gpu !== undefined) {
      blocks.push({ facts: { pciId: gpu }, instances: [], processes: null, trouble: null, reached: false });
      above.length = 0;
      continue;
    }
    const { key, value } = split(label);
    while ((above.at(-1)?.indent ?? -1) >= indent) above.pop();
    const parents = above.map((each) => each.label);
    above.push({ indent, label: key });
    const block = blocks.at(-1);
    if (block !== undefined && indent > 0) {
      // A last line without its end may have lost a part of what it says.
      const isCut = at === lines.length - 1 && value !== null && key.endsWith('uuid') && !isUsualUuid(value);
      if (!isCut) take(block, parents, key, value);
    } else if (value !== null && !header.has(key)) header.set(key, value);
    else rest.push(raw);
  }
  const count = header.get('attached gpus') ?? '';
  const attached = /^\d{1,4}$/.test(count) ? Number(count) : null;
  return {
    ...nothingRead,
    driver: newer(driverVersion, header.get('kmd version'), header.get('driver version')),
    cuda: newer(cudaVersion, header.get('cuda umd version'), header.get('cuda version')),
    attached,
    gpus: blocks.map(({ reached, ...block }): GpuReading => ({ ...block, depth: reached ? 'state' : 'cut' })),
    whole: attached !== null && blocks.every((block) => block.reached),
    // A complaint has a colon too, but no such label.
    rest: [...rest, ...[...header].flatMap(([key, value]) => (known.has(key) ? [] : [`${key}: ${value}`]))].join('\n'),
  };
}

const known: ReadonlySet<string> = new Set([
  'timestamp',
  'driver version',
  'cuda version',
  'kmd version',
  'cuda umd version',
  'attached gpus',
]);

/** `Label : value`, `Label` alone as the head of a section. */
function split(line: string): { key: string; value: string | null } {
  const at = line.indexOf(' : ');
  if (at < 0) return { key: line.replace(/ :$/, '').trim().toLowerCase(), value: line.endsWith(' :') ? '' : null };
  return { key: line.slice(0, at).trim().toLowerCase(), value: line.slice(at + 3).trim() };
}

function take(block: Block, parents: readonly string[], key: string, value: string | null): void {
  const [section = key] = parents;
  if (section === 'processes') {
    block.reached = true;
    takeProcess(block, parents.length === 0 ? null : key, value);
    return;
  }
  if (value !== null) block.trouble ??= troubleIn(value);
  if (section === 'mig device') {
    if (parents.length === 0) block.instances.push({});
    const instance = block.instances.at(-1);
    const field = textPlaces.mig.get([...parents.slice(1), key].join('/'));
    if (field !== undefined && instance !== undefined && value !== null) instance[field] = value;
    return;
  }
  const field = textPlaces.gpu.get([...parents, key].join('/'));
  if (field !== undefined && value !== null) block.facts[field] = value;
}

/** Processes have no heads of their own: from 450 on the instance's ids come before `Process ID`, the rest below it. */
function takeProcess(block: Block, key: string | null, value: string | null): void {
  if (key === null) {
    // `Processes : None` is none; `N/A` is nobody knows.
    block.processes = value === null || /^none$/i.test(value) ? [] : null;
    return;
  }
  const field = textPlaces.process.get(key);
  if (field === undefined || value === null || block.processes === null) return;
  const last = block.processes.at(-1);
  const begins = field === 'gpuInstance' || (field === 'pid' && last?.pid !== undefined);
  if (begins || last === undefined) block.processes.push({ [field]: value });
  else last[field] = value;
}
