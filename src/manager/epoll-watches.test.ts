import { expect, test } from 'vitest';
import { epollFindings } from './epoll-watches.ts';

const pool = (name: string, runtime: 'docker' | 'process' | null, memory: number | null, user: string | null = null) => ({
  name,
  runtime,
  recipe: { memory, user },
});
const gib = 2 ** 30;

test.each([
  ['containers whose root is the daemon’s', [pool('a', 'docker', 8 * gib)], true, 'a'],
  ['containers with root by its number', [pool('a', null, 8 * gib, '0:0')], true, 'a'],
  ['processes of the daemon’s own user', [pool('a', 'process', 8 * gib), pool('b', 'process', 2 * gib)], false, 'a, b'],
])('%s can take what the daemon may watch', (_, pools, root, names) => {
  expect(epollFindings(pools, { best: 'docker', root, limit: 5_491_489 })).toEqual([
    {
      level: 'warning',
      subject: 'epoll',
      message: expect.stringContaining(`A job of pool ${names} can end this daemon: 837.9 MiB of its memory`),
      hint: expect.stringContaining('sysctl -w fs.epoll.max_user_watches=6871947673'),
    },
  ]);
});

test.each([
  ['a memory limit that comes first', [pool('a', 'docker', 512 * 2 ** 20)], true, 5_491_489],
  ['no memory limit, with which a job may use all memory', [pool('a', 'docker', null)], true, 5_491_489],
  ['another user in its containers', [pool('a', 'docker', 8 * gib, '1000')], true, 5_491_489],
  ['processes of users of their own', [pool('a', 'process', 8 * gib)], true, 5_491_489],
  ['a host that allows more than its memory holds', [pool('a', 'docker', 8 * gib)], true, 6_871_947_673],
  ['a kernel that does not say', [pool('a', 'docker', 8 * gib)], true, null],
])('nothing is to say about %s', (_, pools, root, limit) => {
  expect(epollFindings(pools, { best: 'docker', root, limit })).toEqual([]);
});
