import fc from 'fast-check';
import { expect, it } from 'vitest';
import { jobPage, pagePlace } from './job-pages.ts';
import type { JobView } from './schema.ts';

const view = (id: string, submittedAt: number, pool = 'a') => ({ id, submittedAt, startedAt: null, pool }) as unknown as JobView;

/** Ids of all pages, as a client gets them that puts each page before those it has. */
function pages(own: number[], elsewhere: { at: number; pool: string }[], limit: number, pool: string | null): string[] {
  const mine = own.toSorted((a, b) => b - a).map((at, n, all) => ({ seq: all.length - n, job: view(`own ${all.length - n}`, at) }));
  const others = elsewhere.toSorted((a, b) => b.at - a.at).map(({ at, pool: of }, n) => view(`other ${n}`, at, of));
  let found: string[] = [];
  for (let [key, n] = [null as string | null, 0]; ; n += 1) {
    const place = pagePlace(key);
    const rest = mine.filter(({ seq }) => seq < place.seq).slice(0, limit + 1);
    const { jobs, next } = jobPage(rest, others.slice(place.skip, place.skip + limit + 1), { place, pool, limit });
    expect(jobs.length).toBeLessThanOrEqual(limit);
    found = [...jobs.map(({ id }) => id), ...found];
    if (next === null) return found;
    expect(n).toBeLessThan(100);
    key = next;
  }
}

it('has each job once over all pages, the newest last', () => {
  const others = fc.array(fc.record({ at: fc.nat(50), pool: fc.constantFrom('a', 'b') }), { maxLength: 15 });
  fc.assert(
    fc.property(fc.array(fc.nat(50), { maxLength: 15 }), others, fc.integer({ min: 1, max: 8 }), (own, elsewhere, limit) => {
      expect(pages(own, elsewhere, limit, null)).toEqual(pages(own, elsewhere, 100, null));
      expect(pages(own, elsewhere, limit, 'a').toSorted()).toEqual(pages(own, elsewhere, 100, 'a').toSorted());
      expect(pages(own, elsewhere, limit, null)).toHaveLength(own.length + elsewhere.length);
    }),
  );
});

it('refuses a key of something else', () => {
  expect(() => pagePlace('9.4')).toThrow('is not the key of a page');
});
