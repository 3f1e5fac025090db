import fc from 'fast-check';
import { expect, it } from 'vitest';
import { type Waiting, WaitingJobs } from './job-index.ts';

it('gives higher priority first, then submission order, whatever was taken out in between', () => {
  const step = fc.record({ add: fc.boolean(), priority: fc.integer({ min: -2, max: 2 }), pick: fc.nat() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const heap = new WaitingJobs();
      let plain: Waiting[] = [];
      steps.forEach(({ add, priority, pick }, seq) => {
        if (add) {
          const job = { id: `j${seq}`, priority, seq, user: null };
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
        expect([...heap]).toEqual(plain);
        expect(plain.map((one) => heap.ahead(one.id))).toEqual(plain.map((_, place) => place));
        expect(heap.ahead('nobody')).toBe(0);
      });
    }),
  );
});

/** The order in which jobs of these users are taken, `batch` of them before each of the later ones comes. */
function taken(first: readonly string[], later: readonly string[] = [], batch = 0): string {
  const heap = new WaitingJobs();
  let seq = 0;
  const order: string[] = [];
  const add = (user: string) => heap.add({ id: `j${++seq}`, priority: 0, seq, user });
  const take = () => {
    const head = heap.head();
    if (head === null) return;
    order.push(head.user ?? '');
    heap.remove(head.id);
  };
  for (const user of first) add(user);
  for (const user of later) {
    for (let at = 0; at < batch; at += 1) take();
    add(user);
  }
  while (heap.size > 0) take();
  return order.join('');
}

it('lists jobs in the order in which they are taken, with users in turn', () => {
  const heap = new WaitingJobs();
  [...'aaabbc'].forEach((user, seq) => {
    heap.add({ id: `${user}${seq}`, priority: 0, seq, user });
  });
  const listed = [...heap].map(({ id }) => id);
  const order: string[] = [];
  for (let head = heap.head(); head !== null; head = heap.head()) {
    order.push(head.id);
    heap.remove(head.id);
  }
  expect(listed).toEqual(order);
  expect(order).toEqual(['a0', 'b3', 'c5', 'a1', 'b4', 'a2']);
});

it('takes users in turn, regardless of who was first and with how many jobs', () => {
  expect(taken([...'aaaaab'])).toBe('abaaaa');
  expect(taken([...'aaaabbbcc'])).toBe('abcabcaba');
  expect(taken([...'aaaaaa'], [...'b'], 3)).toBe('aaabaaa');
});

it('lets no user starve while another submits again and again', () => {
  const order = taken([...'ab'], [...'aaaaaaaa'], 1);
  expect(order.indexOf('b')).toBeLessThanOrEqual(2);
});

it('gives a job that comes back the turn it had, and one turn at most is lost by jobs that were cancelled', () => {
  const heap = new WaitingJobs();
  const job = (id: string, seq: number, user: string) => ({ id, seq, user, priority: 0 });
  for (let seq = 1; seq <= 5; seq += 1) heap.add(job(`a${seq}`, seq, 'a'));
  heap.remove('a1');
  heap.add(job('a1', 1, 'a'));
  expect(heap.head()?.id).toBe('a1');
  for (let seq = 1; seq <= 5; seq += 1) heap.forget(`a${seq}`);
  heap.add(job('b1', 6, 'b'));
  heap.add(job('b2', 7, 'b'));
  heap.add(job('a6', 8, 'a'));
  expect(heap.ahead('a6')).toBe(2);
});

it('takes the jobs of a user in the order they came, also one that had to wait for another, and gives the user no turn more', () => {
  const heap = new WaitingJobs();
  const add = (user: string, seq: number) => heap.add({ id: `${user}${seq}`, seq, user, priority: 0 });
  for (const seq of [3, 5, 7]) add('a', seq);
  for (const seq of [2, 4, 6]) add('b', seq);
  add('a', 1);
  expect(heap.ahead('a1')).toBe(1);
  const order: string[] = [];
  for (let head = heap.head(); head !== null; head = heap.head()) {
    expect(heap.ahead(head.id)).toBe(0);
    order.push(head.id);
    heap.remove(head.id);
  }
  expect(order).toEqual(['b2', 'a1', 'b4', 'a3', 'b6', 'a5', 'a7']);
});

it('takes the jobs of each user in the order they came, whichever of them may start when', () => {
  const users = ['a', 'b', 'c'];
  const step = fc.record({ take: fc.boolean(), seq: fc.nat(30), user: fc.constantFrom(...users) });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const heap = new WaitingJobs();
      const there = new Map<string, Waiting>();
      for (const { take, seq, user } of steps) {
        const head = heap.head();
        if (take && head !== null) {
          heap.forget(head.id);
          there.delete(head.id);
        } else if (!take) {
          // No two have the same number.
          const job = { id: `${user}${seq}`, seq: seq * users.length + users.indexOf(user), user, priority: 0 };
          heap.add(job);
          there.set(job.id, job);
        }
        expect(heap.size).toBe(there.size);
        const places = [...there.values()].toSorted((a, b) => a.seq - b.seq).map(({ id, user }) => ({ user, at: heap.ahead(id) }));
        expect(places.map(({ at }) => at).toSorted((a, b) => a - b)).toEqual(places.map((_, at) => at));
        for (const one of users) {
          const own = places.filter(({ user }) => user === one).map(({ at }) => at);
          expect(own).toEqual(own.toSorted((a, b) => a - b));
        }
      }
    }),
  );
});

it('takes each user at most once more than any other who waits as well', () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom('a', 'b', 'c'), { minLength: 1, maxLength: 40 }), (users) => {
      const order = taken(users);
      const left: Record<string, number> = { a: 0, b: 0, c: 0 };
      const had: Record<string, number> = { a: 0, b: 0, c: 0 };
      for (const user of users) left[user] = (left[user] ?? 0) + 1;
      for (const user of order) {
        had[user] = (had[user] ?? 0) + 1;
        left[user] = (left[user] ?? 0) - 1;
        for (const other of ['a', 'b', 'c']) {
          if ((left[other] ?? 0) > 0) expect((had[user] ?? 0) - (had[other] ?? 0)).toBeLessThanOrEqual(1);
        }
      }
    }),
  );
});
