/**
 * Reads the kernel log's device, without blocking: each look reads all that is there, from the oldest record on, so that it also
 * sees an error from while no manager was running (S5). It keeps the newest event of each kind per GPU.
 */
import { closeSync, constants, openSync } from 'node:fs';
import { attempt, messageOf } from '../base/errors.ts';
import { readRecords, recordSize } from '../system/kernel-records.ts';
import { turn } from '../system/system-clock.ts';
import { finding } from './finding.ts';
import type { GpuFinding } from './inventory.ts';
import { createKernelParser, type KernelEvent, type KernelMark } from './kernel-log.ts';

export interface KernelLog extends Disposable {
  /** Reads what is new. Never rejects; concurrent looks share one. */
  look(): Promise<KernelLook>;
}

/** What the kernel log contains now. */
export interface KernelLook {
  readonly readable: boolean;
  readonly events: readonly KernelEvent[];
  /** Records were overwritten before they could be read, so that an error may have been missed. */
  readonly lost: boolean;
  /** Its end. Stored with an agent's baseline, it tells what came later. */
  readonly mark: KernelMark;
}

interface KernelLogOptions {
  /** Default `/dev/kmsg`. */
  readonly path?: string;
  /** Seconds since boot. */
  readonly uptime: () => number;
  /** Called when the log cannot be read, once until it can be. */
  readonly say?: (finding: GpuFinding) => void;
}

/** Reads before other work gets its turn: about 2 ms. */
const burst = 500;
/** Reads of one look; the next look continues with a log that grows faster. */
const mostReads = 100_000;
/** Different events kept. */
const mostEvents = 2_000;

export function createKernelLog({ path = '/dev/kmsg', uptime, say }: KernelLogOptions): KernelLog {
  const buffer = Buffer.alloc(recordSize);
  const events = new Map<string, KernelEvent>();
  let source: Source | null = null;
  let lastSeq: number | null = null;
  let isLost = false;
  let isReported = false;
  let running: Promise<KernelLook> | null = null;

  const keep = (event: KernelEvent): void => {
    const key = [event.kind, event.pciId, event.xid, event.gpuInstance].join(' ');
    events.delete(key);
    events.set(key, event);
    if (events.size <= mostEvents) return;
    const [oldest] = events.keys();
    if (oldest !== undefined) events.delete(oldest);
    isLost = true;
  };

  const take = (from: Source, bytes: number): void => {
    const lines = (from.rest + buffer.toString('latin1', 0, bytes)).split('\n');
    from.rest = (lines.pop() ?? '').slice(0, recordSize);
    for (const line of lines) {
      const seq = /^\d+,(\d+),/.exec(line)?.[1];
      if (seq !== undefined) lastSeq = Number(seq);
      for (const event of from.parse(line)) keep(event);
    }
  };

  /** Why it could not be read to its end; null when it could. */
  const readAll = async (): Promise<string | null> => {
    try {
      source ??= { fd: openSync(path, constants.O_RDONLY | constants.O_NONBLOCK), parse: createKernelParser(), rest: '' };
      for (let reads = 1; reads <= mostReads && source !== null; reads++) {
        const bytes = readRecords(source.fd, buffer);
        if (bytes === 'end') return null;
        if (bytes === 'overwritten') isLost = true;
        else take(source, bytes);
        if (reads % burst === 0) await turn();
      }
      return null;
    } catch (error) {
      close();
      return messageOf(error);
    }
  };

  const close = (): void => {
    const { fd } = source ?? {};
    source = null;
    // It may be closed already, or was never valid; the next look opens it again.
    if (fd !== undefined) attempt(() => closeSync(fd));
  };

  const look = async (): Promise<KernelLook> => {
    const why = await readAll();
    const readable = why === null;
    if (!readable && !isReported) say?.(unreadable(`The kernel log ${path} cannot be read: ${why}.`));
    isReported = !readable;
    const mark = { seq: readable ? lastSeq : null, at: uptime() };
    return { readable, events: [...events.values()], lost: isLost, mark };
  };

  return {
    look() {
      running ??= look().finally(() => {
        running = null;
      });
      return running;
    },
    [Symbol.dispose]: close,
  };
}

interface Source {
  readonly fd: number;
  readonly parse: (line: string) => KernelEvent[];
  /** The beginning of an incomplete line. */
  rest: string;
}

function unreadable(sentence: string): GpuFinding {
  const message = `${sentence} onejob does not see errors that the driver reports only there (Xid).`;
  const hint = 'Run onejob as root, or add AmbientCapabilities=CAP_SYSLOG to its unit.';
  return finding('warning', 'kernel-log-unreadable', 'host', message, hint);
}
