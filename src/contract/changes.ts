/**
 * What has changed, in one ring: each entry only names something, so a reader that comes back gets what it has missed as it is by
 * then, and something that changed often costs one entry. Memory is bounded by the size of the ring, whatever readers do.
 */
import { randomBytes } from 'node:crypto';
import { turn } from '../system/system-clock.ts';

export type Kind = 'slot' | 'job' | 'pool' | 'device' | 'host';

/** Something that can change: its kind and name. */
export type Subject = `${Kind} ${string}`;

export interface Changes {
  /** Numbers mean something only together with it. */
  readonly epoch: string;
  /** Number of the newest entry; 0 before the first. */
  readonly head: number;
  mark(subject: Subject): void;
  /** What has changed since entry `cursor`, oldest first and each once; null if that is no longer known, or never was. */
  after(cursor: number): Iterable<readonly [number: number, subject: Subject]> | null;
  /** Calls `listener` after changes, once for all that come together, until the returned function is called. */
  listen(listener: () => void): () => void;
}

/** `later` calls what it is given once the current work is done. */
export function createChanges({
  size = 8_192,
  later = (work: () => void): void => void turn().then(work),
}: {
  readonly size?: number;
  readonly later?: (work: () => void) => void;
} = {}): Changes {
  const ring: Subject[] = [];
  /** Number of each subject's newest entry. */
  const newest = new Map<Subject, number>();
  const listeners = new Set<() => void>();
  let head = 0;
  /** The newest entry that somebody may have read. Later ones also stand for changes that come before they are read. */
  let read = 0;
  let isDue = false;

  function tell(): void {
    isDue = false;
    for (const listener of [...listeners]) listener();
  }

  return {
    epoch: randomBytes(4).toString('hex'),
    get head() {
      return head;
    },
    mark(subject) {
      if ((newest.get(subject) ?? 0) <= read) {
        head += 1;
        const dropped = ring[head % size];
        if (dropped !== undefined && newest.get(dropped) === head - size) newest.delete(dropped);
        ring[head % size] = subject;
        newest.set(subject, head);
      }
      if (isDue || listeners.size === 0) return;
      isDue = true;
      later(tell);
    },
    after(cursor) {
      read = head;
      if (cursor > head || cursor < Math.max(0, head - size)) return null;
      return (function* () {
        for (let at = cursor + 1; at <= head; at += 1) {
          const subject = ring[at % size];
          if (subject !== undefined && newest.get(subject) === at) yield [at, subject];
        }
      })();
    },
    listen(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
}
