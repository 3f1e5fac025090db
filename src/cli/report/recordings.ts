/**
 * What GPU tools print about this host, as `docs/gpus.md` says it is recorded, and as `onejob gpus --from` reads it. The names of models and
 * drivers and what identifies a card stay as they are; of all else, only public words.
 */
import type { ToolRunner } from '../../gpu/run.ts';
import { jsonOf } from '../../system/json.ts';
import type { PublicWords } from './public-words.ts';

export interface Recording {
  readonly file: string;
  readonly call: string;
  readonly text: string;
}

const calls = [
  ['nvidia.xml', 'nvidia-smi', '-q', '-x'],
  ['nvidia-list.txt', 'nvidia-smi', '-L'],
  ['amd-static.json', 'amd-smi', 'static', '--json'],
  ['amd-list.json', 'amd-smi', 'list', '--json'],
  ['rocm.json', 'rocm-smi', '-a', '--showmeminfo', 'vram', '--json'],
  ['intel-discovery.json', 'xpu-smi', 'discovery', '-j'],
  ['intel-health.json', 'xpu-smi', 'health', '-l', '-j'],
] as const;

/** ms for one call. */
const limit = 30_000;

/** `silent`: calls that failed or hung. A tool that is not there has none. */
export async function recordGpus(runner: ToolRunner, words: PublicWords) {
  const made: Recording[] = [];
  const silent: string[] = [];
  const hung = new Set<string>();
  for (const [file, tool, ...args] of calls) {
    if (hung.has(tool) || (await runner.find(tool)) === null) continue;
    const reply = await runner.run(tool, args, { limit });
    const call = [tool, ...args].join(' ');
    if (reply.hung) hung.add(tool);
    if (reply.hung || reply.output.trim() === '') silent.push(`${call} ${reply.hung ? 'timed out' : 'printed nothing'}`);
    if (reply.output.trim() !== '') made.push({ file, call, text: recordingText(reply.output, words) });
  }
  return { made, silent };
}

/** Elements and keys whose values tell devices and drivers apart. */
const named =
  /^(product_\w+|uuid|gpu_uuid|driver\w*|cuda_version|vbios_version|pci_\w+|(sub_)?sys\w*_id|bdf|\w*bdf\w*|market_name|device_name|Card \w+|Driver version|Device Name|PCI Bus|Unique ID|GUID)$/i;
/** Whatever its element says: as no name of a person, address or token is written. */
const device =
  /^((GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|0x[0-9a-f]{1,16})$/i;
/** Of a named value: letters and digits as in `NVIDIA A100-SXM4-80GB`. */
const model = /^[\w .:()[\]/-]{1,80}$/;
const quantity = /^\d{1,9}(\.\d+)? ?(\w{1,5}|%)?$/;

/** One recording, for strangers. */
export function recordingText(text: string, words: PublicWords): string {
  const json = jsonOf(text);
  if (json !== undefined) return JSON.stringify(ofJson(json, '', words), null, 1);
  if (!text.includes('<nvidia_smi_log')) return listText(text, words);
  let element = '';
  return text.replace(/<([^<>]*)>|[^<>]+/g, (part, tag: string | undefined) => {
    if (tag === undefined) return valueText(element, part, words);
    element = /^\w+/.exec(tag)?.[0] ?? '';
    const id = /^gpu id="([0-9a-f:.]+)"$/i.exec(tag)?.[1];
    if (id !== undefined || /^\/?\w+ ?\/?$/.test(tag)) return part;
    return tag.startsWith('?xml') || tag.startsWith('!DOCTYPE nvidia_smi_log SYSTEM') ? part : '<hidden/>';
  });
}

function valueText(name: string, text: string, words: PublicWords): string {
  const value = text.trim();
  const isKept =
    value === '' ||
    ((!/serial|pid|user|name$/i.test(name) || named.test(name)) &&
      (device.test(value) || quantity.test(value) || (named.test(name) && model.test(value))));
  return isKept ? text : xmlSafe(words.text(text));
}

/** A mark must not look like an element. */
function xmlSafe(text: string): string {
  return text.replaceAll('<', '(').replaceAll('>', ')');
}

/** Lines such as `GPU 0: NVIDIA A100 (UUID: GPU-…)`; of others, only public words. */
function listText(text: string, words: PublicWords): string {
  const line = /^\s*(GPU \d+:|MIG [\w.+]+ +Device +\d+:) ?[\w .-]{0,60}\(UUID: (GPU|MIG)-[0-9a-f/-]+\)$/i;
  return text
    .split('\n')
    .map((each) => (line.test(each) ? each : words.text(each)))
    .join('\n');
}

function ofJson(value: unknown, name: string, words: PublicWords): unknown {
  if (typeof value === 'string') return valueText(name, value, words);
  if (typeof value === 'number') return Math.abs(value) < 1e12 ? value : 0;
  if (Array.isArray(value)) return value.map((each) => ofJson(each, name, words));
  if (typeof value !== 'object' || value === null) return value;
  const isKey = (key: string) => /^(card|gpu)?_?\d{1,3}$/i.test(key) || /^[A-Za-z][\w ()#%-]{0,60}$/.test(key);
  return Object.fromEntries(
    Object.entries(value)
      // Processes: their names and users.
      .filter(([key]) => isKey(key) && !/^(PID|process|user)/i.test(key))
      .map(([key, inner]) => [key, ofJson(inner, key, words)]),
  );
}
