/**
 * What NVIDIA's kernel module writes about GPUs to the kernel log, from records of `/dev/kmsg`. Pure. Only records that the kernel
 * itself wrote count: programs can write to the log too.
 */
import { normalPci } from './pci.ts';

export interface KernelEvent {
  /** A numbered error; it left the bus without a number; it could not be initialised; the driver asks for a reset. */
  readonly kind: 'xid' | 'fallen-off' | 'rm-init' | 'reset-needed';
  /** `0000:9b:00`, as `Device.pciId` without the function, which Xid lines do not print. */
  readonly pciId: string;
  readonly xid: number | null;
  /** MIG instance that the driver blames, as it numbers it. */
  readonly gpuInstance: number | null;
  /** The text, on one line, without its time. */
  readonly text: string;
  /** Seconds since boot. */
  readonly at: number;
  /** Number of the record since boot. */
  readonly seq: number;
}

/** A place in the log: the last record before it, and when that was, in seconds since boot. */
export interface KernelMark {
  readonly seq: number | null;
  readonly at: number | null;
}

/** Whether an event came after a mark. It came after an unknown one. */
export function isAfter(event: KernelEvent, mark: KernelMark): boolean {
  return mark.seq === null ? mark.at === null || event.at >= mark.at : event.seq > mark.seq;
}

/** `domain:bus:device` in lower case, from any spelling of tools and drivers, such as `00000000:01:00.0`; null for other texts. */
export function pciPlace(address: string): string | null {
  // Very old drivers printed the bus with four digits and no domain.
  const plain = address.trim().replace(/^PCI:/i, '');
  return normalPci(plain.replace(/^00([0-9a-f]{2}:[0-9a-f]{2})$/i, '$1'))?.slice(0, -2) ?? null;
}

const address = String.raw`(?:PCI:)?(?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{2,4}:[0-9a-fA-F]{2}(?:\.[0-7])?`;
const xidLine = new RegExp(String.raw`^Xid \((${address})(?: GPU-I:(\d+))?(?: GPU-CI:\d+)?\): (\d{1,6})\b`);
const gpuLine = new RegExp(String.raw`\bGPU (?:at )?(${address})(?![0-9a-fA-F:.]*[0-9a-fA-F])`);

/** Takes one record after the other, since some messages span several lines; returns the events that the record completes. */
export function createKernelParser(): (line: string) => KernelEvent[] {
  /** The beginning of a message about a GPU that is not complete yet. */
  let begun: { readonly pciId: string; readonly head: Head; readonly text: string; readonly left: number } | null = null;

  const read = (head: Head, body: string | null, whole: string): KernelEvent[] => {
    const sentence = body ?? whole;
    if (begun !== null && /\bfallen off the bus\b/.test(sentence) && !gpuLine.test(sentence) && !xidLine.test(sentence)) {
      const event = make('fallen-off', begun.pciId, begun.head, `${begun.text} ${sentence}`);
      begun = null;
      return [event];
    }
    if (begun !== null) begun = begun.left > 1 ? { ...begun, text: `${begun.text} ${sentence}`, left: begun.left - 1 } : null;
    if (body === null) return [];
    const xid = xidLine.exec(body);
    if (xid !== null) {
      const [, at = '', gpuInstance, number] = xid;
      const pciId = pciPlace(at);
      if (pciId === null) return [];
      const blamed = gpuInstance === undefined ? null : Number(gpuInstance);
      return [{ ...make('xid', pciId, head, body), xid: Number(number), gpuInstance: blamed }];
    }
    const pciId = pciPlace(gpuLine.exec(body)?.[1] ?? '');
    if (pciId === null) return [];
    if (/\bfallen off the bus\b/.test(body)) return [make('fallen-off', pciId, head, body)];
    if (/\b(RmInitAdapter|rm_init_adapter) failed\b/.test(body)) return [make('rm-init', pciId, head, body)];
    if (/\bneeds to be reset\b/.test(body)) return [make('reset-needed', pciId, head, body)];
    // The rest of the sentence follows on the next two lines.
    if (body.startsWith('The NVIDIA GPU ')) begun = { pciId, head, text: body, left: 3 };
    return [];
  };

  return (line) => {
    const [, priority, seq, microseconds, text = ''] = /^(\d{1,6}),(\d{1,15}),(\d{1,18}),[^;]*;(.*)$/.exec(line) ?? [];
    // Facility 0 is the kernel; a program's record has another one (Documentation/ABI/testing/dev-kmsg).
    if (priority === undefined || Number(priority) >> 3 !== 0) return [];
    const head = { seq: Number(seq), at: Number(microseconds) / 1e6 };
    // Only the module's own records have more lines: others may contain text that a job chose, such as a path.
    const lines = text.startsWith('NVRM: ') ? decode(text).split('\n') : [text];
    return lines.flatMap((one) => read(head, one.startsWith('NVRM: ') ? one.slice(6).trim() : null, one));
  };
}

/** The kernel writes anything but printable ASCII as `\\xNN`, so line ends too. */
function decode(text: string): string {
  return text.replace(/\\x([0-9a-f]{2})/g, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)));
}

type Head = Pick<KernelEvent, 'at' | 'seq'>;

function make(kind: KernelEvent['kind'], pciId: string, head: Head, body: string): KernelEvent {
  // A program chooses its own name, and the driver prints it.
  const printable = body.replace(/\s+/g, ' ').replace(/[^\x20-\x7e]/g, '?');
  const text = printable.replace(/^(NVRM: )?/, 'NVRM: ').slice(0, 400);
  return { kind, pciId, xid: null, gpuInstance: null, text, ...head };
}
