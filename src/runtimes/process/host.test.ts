import { expect, test } from 'vitest';
import { noexec } from './host.ts';

const mountinfo = ['22 1 254:0 / / rw,relatime - ext4 /dev/vda rw', '40 22 0:40 / /no-such rw,noexec,nosuid - tmpfs x rw'].join(
  '\n',
);

test('a disk whose programs cannot be executed is an error of doctor', () => {
  expect(noexec('/no-such/agents', mountinfo)).toMatchObject([
    { level: 'error', message: expect.stringContaining('/no-such is mounted noexec'), hint: expect.stringContaining('state_dir') },
  ]);
  expect(noexec('/elsewhere', mountinfo)).toEqual([]);
  expect(noexec('/elsewhere', '')).toEqual([]);
});
