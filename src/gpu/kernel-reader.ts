/**
 * Reads the kernel log's own device, which never blocks here: what is there is taken at each look, from the oldest record the
 * kernel still has, so that an error from while the manager was away is seen too (S5). It keeps the newest event of each kind
 * per GPU. Where the log cannot be read it says so once, and every look says why.
 */
import { closeSync, constants, openSync, readSync } from 'node:fs';
import { turn } from '../clock.ts';
import { finding } from './finding.ts';
import type { GpuFinding } from './inventory.ts';
import { createKernelParser, type KernelEvent, type KernelMark } from './kernel-log.ts';

/** What the kernel log holds now. */
export interface KernelLook {
  readonly readable: boolean;
  /** Why it is not readable, as a sentence; null when it is. */
  readonly why: string | null;
  readonly events: readonly KernelEvent[];
  /** Whether records were overwritten before they could be read: an error may have been missed. */
  readonly lost: boolean;
  /** Its end. Kept beside an agent's baseline, it tells what came later. */
  readonly mark: KernelMark;
}

/** Of a log nobody looked at. */
export const noKernelLook: KernelLook = {
  readable: false,
  why: 'onejob did not read the kernel log.',
  events: [],
  lost: false,
  mark: { seq: null, at: null },
};

export interface KernelLog extends Disposable {
  /** Takes what is new. Never rejects; looks at the same time share one. */
  look(): Promise<KernelLook>;
}

export interface KernelLogOptions {
  /** Default `/dev/kmsg`. */
  readonly path?: string;
  /** Seconds since boot. */
  readonly uptime: () => number;
  /** Told when the log cannot be read, once until it could be. */
  readonly say?: (finding: GpuFinding) => void;
}

/** A record is at most 8 KiB (CONSOLE_EXT_LOG_MAX); a read with less room fails. */
const recordSize = 65_536;
/** Reads before the loop may do something else: about 2 ms. */
const burst = 500;
/** Reads of one look; a log that grows faster is read on at the next. */
const mostReads = 100_000;
/** Different events kept. */
const mostEvents = 2_000;

export function createKernelLog({ path = '/dev/kmsg', uptime, say }: KernelLogOptions): KernelLog {
  const buffer = Buffer.alloc(recordSize);
  const events = new Map<string, KernelEvent>();
  let source: Source | null = null;
  let lastSeq: number | null = null;
  let isLost = false;
  let said = false;
  let running: Promise<KernelLook> | null = null;

  const keep = (event: KernelEvent): void => {
    const key = [event.kind, event.pciId, event.xid, event.gpuInstance, event.computeInstance].join(' ');
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

  /** Why it could not be read to its end; null when it was. */
  const readAll = async (): Promise<string | null> => {
    try {
      source ??= { fd: openSync(path, constants.O_RDONLY | constants.O_NONBLOCK), parse: createKernelParser(), rest: '' };
      for (let reads = 1; reads <= mostReads && source !== null; reads++) {
        const bytes = readSome(source.fd, buffer);
        if (bytes === 'end') return null;
        if (bytes === 'overwritten') isLost = true;
        else take(source, bytes);
        if (reads % burst === 0) await turn();
      }
      return null;
    } catch (error) {
      close();
      return error instanceof Error ? error.message : String(error);
    }
  };

  const close = (): void => {
    const { fd } = source ?? {};
    source = null;
    try {
      if (fd !== undefined) closeSync(fd);
    } catch {
      // It is closed or was never sound; a look opens it anew.
    }
  };

  const look = async (): Promise<KernelLook> => {
    const why = await readAll();
    const sentence = why === null ? null : `The kernel log ${path} cannot be read: ${why}.`;
    if (sentence !== null && !said) say?.(unreadable(sentence));
    said = sentence !== null;
    const mark = { seq: sentence === null ? lastSeq : null, at: uptime() };
    return { readable: sentence === null, why: sentence, events: [...events.values()], lost: isLost, mark };
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
  /** Of a line that is not whole yet. */
  rest: string;
}

function readSome(fd: number, into: Buffer): number | 'end' | 'overwritten' {
  try {
    const bytes = readSync(fd, into, 0, into.length, null);
    return bytes === 0 ? 'end' : bytes;
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : null;
    if (code === 'EAGAIN') return 'end';
    // The kernel wrote faster than we read, and goes on with the oldest record it has.
    if (code === 'EPIPE') return 'overwritten';
    if (code === 'EINTR') return 0;
    throw error;
  }
}

function unreadable(sentence: string): GpuFinding {
  const message = `${sentence} onejob does not see errors that the driver reports only there (Xid).`;
  const hint = 'Run onejob as root, or add AmbientCapabilities=CAP_SYSLOG to its unit.';
  return finding('warning', 'kernel-log-unreadable', 'host', message, hint);
}
