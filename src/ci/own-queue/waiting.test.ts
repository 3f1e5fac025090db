import fc from 'fast-check';
import { expect, it } from 'vitest';
import { type Waiting, WaitingJobs } from './waiting.ts';

it('gives higher priority first, then submission order, whatever was taken out in between', () => {
  const step = fc.record({ add: fc.boolean(), priority: fc.integer({ min: -2, max: 2 }), pick: fc.nat() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const heap = new WaitingJobs<Waiting>();
      let plain: Waiting[] = [];
      steps.forEach(({ add, priority, pick }, seq) => {
        if (add) {
          const job = { id: `j${seq}`, priority, seq };
          heap.add(job);
          heap.add(job);
          plain.push(job);
          plain.sort((a, b) => b.priority - a.priority || a.seq - b.seq);
        } else {
          const victim = plain[pick % (plain.length + 1)];
          heap.remove(victim?.id ?? 'nobody');
          plain = plain.filter((one) => one !== victim);
        }
        expect(heap.head()).toEqual(plain[0] ?? null);
        expect(heap.size).toBe(plain.length);
        expect(plain.map((one) => heap.ahead(one.id))).toEqual(plain.map((_, place) => place));
        expect(heap.ahead('nobody')).toBe(0);
      });
    }),
  );
});
