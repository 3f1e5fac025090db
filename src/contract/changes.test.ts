import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type Changes, createChanges, type Subject } from './changes.ts';

/** Changes whose batches are told by hand. */
function byHand(size?: number) {
  const due: (() => void)[] = [];
  const changes = createChanges({ ...(size !== undefined && { size }), later: (work) => void due.push(work) });
  return { changes, due, tell: () => due.splice(0).forEach((work) => void work()) };
}

const names = (changes: Changes, cursor: number) => [...(changes.after(cursor) ?? ['reset'])].map((entry) => entry[1]);

test('what changes twice in one go is told once', () => {
  const { changes, due, tell } = byHand();
  let told = 0;
  changes.listen(() => {
    told += 1;
    changes.after(0);
  });
  for (const subject of ['slot a/1', 'slot a/1', 'job j', 'slot a/1'] as const) changes.mark(subject);
  expect([due.length, told]).toEqual([1, 0]);
  tell();
  expect([names(changes, 0), told]).toEqual([['slot a/1', 'job j'], 1]);
  changes.mark('slot a/1');
  tell();
  expect(names(changes, 2)).toEqual(['slot a/1']);
  // The entry before is of no use to anybody.
  expect(names(changes, 0)).toEqual(['job j', 'slot a/1']);
});

test('while nobody listens nothing is scheduled, and something that changes often takes one entry', () => {
  const { changes, due } = byHand();
  for (let n = 0; n < 1_000; n += 1) changes.mark('slot a/1');
  expect([due.length, changes.head]).toEqual([0, 1]);
});

test('a cursor that is too old, or from elsewhere, is told so', () => {
  const { changes } = byHand(4);
  expect(changes.after(-1)).toBeNull();
  for (let n = 1; n <= 6; n += 1) changes.mark(`job ${n}`);
  expect(names(changes, 2)).toEqual(['job 3', 'job 4', 'job 5', 'job 6']);
  expect([changes.after(1), changes.after(-1), changes.after(7)]).toEqual([null, null, null]);
});

test('every reader, whenever and however slowly it reads, ends with everything as it is', () => {
  const subject = fc.integer({ min: 0, max: 9 }).map((n): Subject => `job ${n}`);
  const step = fc.oneof(
    fc.record({ do: fc.constant('mark' as const), subject }),
    fc.record({ do: fc.constant('tell' as const) }),
    // Reads so many entries, as far as its connection takes them.
    fc.record({ do: fc.constant('read' as const), reader: fc.integer({ min: 0, max: 2 }), most: fc.integer({ min: 0, max: 5 }) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 80 }), fc.integer({ min: 1, max: 6 }), (steps, size) => {
      const { changes, tell } = byHand(size);
      const now = new Map<Subject, number>();
      const readers = [0, 1, 2].map(() => ({ cursor: 0, has: new Map<Subject, number>() }));
      const read = (reader: (typeof readers)[number], most: number): void => {
        const missed = changes.after(reader.cursor);
        if (missed === null) {
          reader.cursor = changes.head;
          reader.has = new Map(now);
          return;
        }
        let left = most;
        for (const [at, one] of missed) {
          if (left-- <= 0) return;
          reader.cursor = at;
          reader.has.set(one, now.get(one) ?? 0);
        }
      };
      changes.listen(() => read(readers[0] as (typeof readers)[number], 3));
      for (const one of steps) {
        if (one.do === 'tell') tell();
        else if (one.do === 'read') read(readers[one.reader] as (typeof readers)[number], one.most);
        else {
          now.set(one.subject, (now.get(one.subject) ?? 0) + 1);
          changes.mark(one.subject);
        }
      }
      for (const reader of readers) {
        read(reader, Infinity);
        expect(reader.has).toEqual(now);
      }
    }),
  );
});
