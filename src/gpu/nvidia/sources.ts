/** The answers of one host's nvidia-smi, each parsed, with the problems of each call. */
import { finding, ownWords } from '../finding.ts';
import type { GpuFinding } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import type { Reply } from '../run.ts';
import { failuresIn, failuresOf, kernelLog, reboot } from './failures.ts';
import { readList } from './list.ts';
import type { GpuReading, Reading } from './reading.ts';
import { nvidiaText } from './values.ts';
import { readXml } from './xml.ts';

/** The sources about one host's NVIDIA GPUs; one that was not asked is left out or null. */
export interface NvidiaParts {
  /** `nvidia-smi -q -x`; several when each GPU was queried separately (`-i UUID`). Only this has complete health and processes. */
  readonly xml?: Reply | readonly Reply[] | null;
  /** `nvidia-smi -L`: the only source of the UUIDs and profiles of MIG instances. */
  readonly list?: Reply | readonly Reply[] | null;
  /** `/proc/driver/nvidia/version`: the loaded kernel module. */
  readonly procVersion?: string | null;
  readonly procGpus?: readonly string[] | null;
  /** PCI addresses of the expected NVIDIA GPUs: all on the bus except those that another driver holds. null where unknown. */
  readonly pciIds?: readonly string[] | null;
}

type SourceKind = 'xml' | 'list';

/** What one kind of call said. */
export interface ToolSource extends Pick<Reading, 'driver' | 'cuda' | 'attached' | 'gpus'> {
  readonly kind: SourceKind;
  /** Whether these are all GPUs of the driver. */
  readonly whole: boolean;
  /** PCI addresses of GPUs from complete answers. */
  readonly certain: ReadonlySet<string>;
  readonly findings: readonly GpuFinding[];
}

/** Those that were asked, the more detailed first. */
export function sourcesOf(parts: NvidiaParts, module: string | null): readonly ToolSource[] {
  const all = (['xml', 'list'] as const).map((kind) => sourceOf(kind, [parts[kind] ?? []].flat(), module));
  return all.filter((source) => source !== null);
}

/** More than any host has, and few enough to compare each with each. */
const mostGpus = 512;

const troubles: ReadonlySet<string> = new Set(['gpu-lost', 'reset-required']);

/** All answers of one kind: usually one, several when each GPU was queried separately. */
function sourceOf(kind: SourceKind, replies: readonly Reply[], module: string | null): ToolSource | null {
  if (replies.length === 0) return null;
  const { read } = outputs[kind];
  const answers = replies.map((reply) => {
    const answer = read(reply.output);
    const isTroubled = answer.gpus.some((gpu) => gpu.trouble !== null);
    // The answer attributes to one GPU what the exit code says about the host.
    const isSaid = ({ code, subject }: GpuFinding) => subject === 'host' && isTroubled && troubles.has(code);
    const failures = failuresOf(reply, answer.rest, module).filter((each) => !isSaid(each));
    const whole = answer.whole && !reply.hung;
    const torn = whole || failures.length > 0 ? [] : [tornFinding(reply, answer, kind)];
    // An exit code alone is not a reason to distrust a complete answer.
    const serious = answer.whole ? failuresIn(answer.rest, module) : failures;
    const complained = serious.some((each) => each.level === 'error');
    return { ...answer, whole, findings: [...failures, ...torn], complained };
  });
  const all = answers.flatMap((answer) => answer.gpus);
  const gpus = all.slice(0, mostGpus);
  const attached = Math.max(-1, ...answers.map((answer) => answer.attached ?? -1));
  const names = new Set(gpus.map((gpu, at) => nvidiaText(gpu.facts.uuid) ?? nvidiaText(gpu.facts.pciId) ?? `${at}`));
  // Queried for one GPU, the tool reports how many there are, so only all answers together must have as many.
  const isOne = replies.length === 1;
  const allWhole = answers.every((answer) => answer.whole);
  const short = attached >= 0 && allWhole && (isOne ? names.size !== attached : names.size < attached);
  const isAnswered = answers.some((answer) => answer.whole && answer.gpus.length > 0);
  const findings = answers.flatMap((answer, at) => {
    const pciId = isAnswered && answer.gpus.length === 0 ? askedFor(replies[at]) : null;
    return pciId === null ? answer.findings : ofCard(answer.findings, pciId);
  });
  if (short) {
    const count = attached === 1 ? '1 GPU' : `${attached} GPUs`;
    const message = `The driver has ${count}, but nvidia-smi listed ${names.size}: the output is incomplete.`;
    findings.push(finding('error', 'output-short', 'host', message, 'Record it again, completely.'));
  }
  if (all.length > mostGpus) {
    const message = `nvidia-smi listed ${all.length} GPUs, which is implausible; onejob uses only the first ${mostGpus}.`;
    findings.push(finding('error', 'output-odd', 'host', message));
  }
  const gap = gapIn(gpus);
  const complained = answers.some((answer) => answer.complained);
  if (gap !== null && !complained) {
    const message = `nvidia-smi lists GPUs with higher numbers, but GPU ${gap} is missing.`;
    findings.push(finding('error', 'index-gap', 'host', message, kernelLog));
  }
  const whole = !short && gap === null && all.length === gpus.length && allWhole && !complained;
  return {
    kind,
    gpus: whole && isOne && kind === 'xml' ? gpus.map(withIndex) : gpus,
    whole,
    attached: attached < 0 ? null : attached,
    certain: new Set(answers.flatMap((answer) => (answer.whole ? placesOf(answer.gpus) : []))),
    driver: answers.find((answer) => answer.driver !== null)?.driver ?? null,
    cuda: answers.find((answer) => answer.cuda !== null)?.cuda ?? null,
    findings,
  };
}

/** The only GPU that was queried; null where all were, or the call did not end. */
function askedFor(reply: Reply | undefined): string | null {
  const at = reply?.args.indexOf('-i') ?? -1;
  return reply === undefined || reply.hung || at < 0 ? null : normalPci(reply.args[at + 1] ?? '');
}

/** Findings about every GPU, even if another one answered just before. */
const ofTheHost: ReadonlySet<string> = new Set(['driver-not-loaded', 'library-mismatch', 'nvml-missing', 'tool-missing']);

/** If the tool answers for other GPUs, what it says about the host when queried for one GPU is about that GPU. */
function ofCard(findings: readonly GpuFinding[], pciId: string): readonly GpuFinding[] {
  return findings.map((each) => {
    if (each.subject !== 'host' || ofTheHost.has(each.code)) return each;
    const code = each.code === 'reset-required' || each.code === 'power-cable' ? each.code : 'gpu-lost';
    const message = `${pciId} does not respond, although other GPUs do; a query for it alone failed: ${each.message}`;
    return finding('error', code, pciId, message, each.hint ?? reboot);
  });
}

function placesOf(gpus: readonly GpuReading[]): string[] {
  return gpus.map((gpu) => normalPci(nvidiaText(gpu.facts.pciId) ?? '')).filter((pciId) => pciId !== null);
}

/** GPUs are listed in the order of their numbers, which are not printed. */
function withIndex(gpu: GpuReading, at: number): GpuReading {
  return { ...gpu, facts: { index: String(at), ...gpu.facts } };
}

/** The first missing number between 0 and the highest; null when none is missing, or the output has no numbers. */
function gapIn(gpus: readonly GpuReading[]): number | null {
  const numbers = new Set(gpus.map((gpu) => Number.parseInt(gpu.facts.index ?? '', 10)));
  const highest = Math.max(...numbers);
  if (!Number.isInteger(highest) || highest > 1000) return null;
  for (let at = 0; at < highest; at += 1) if (!numbers.has(at)) return at;
  return null;
}

const outputs = { xml: { call: 'nvidia-smi -q -x', read: readXml }, list: { call: 'nvidia-smi -L', read: readList } };

function tornFinding(reply: Reply, answer: Reading, kind: SourceKind): GpuFinding {
  const asked = `"${outputs[kind].call}"`;
  const again = `Type ${asked} and check what it prints.`;
  if (reply.output.trim() === '') return finding('error', 'tool-silent', 'host', `${asked} printed nothing.`, again);
  const words = ownWords(answer.rest);
  if (answer.gpus.length === 0 && answer.driver === null && answer.attached === null && words !== null)
    return finding('error', 'output-odd', 'host', `${asked} printed something unexpected: "${words}".`, again);
  const of = answer.attached === null ? '' : ` of ${answer.attached}`;
  const message = `The output of ${asked} is cut off or damaged; ${answer.gpus.length}${of} GPUs could be read completely.`;
  return finding('error', 'output-torn', 'host', message, again);
}
