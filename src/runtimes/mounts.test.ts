import { expect, test } from 'vitest';
import { foreignMount, parseMounts } from './mounts.ts';

const own = parseMounts(
  [
    '22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw',
    '30 22 8:16 / /srv rw - ext4 /dev/sdb rw',
    '31 22 0:5 /old /mnt/two\\040words rw - ext4 /dev/sdc rw',
    '32 22 0:6 /new /mnt/two\\040words rw - ext4 /dev/sdd rw',
  ].join('\n'),
);
const inside = (...lines: string[]) => parseMounts(lines.map((line, at) => `${at} 1 ${line} rw - ext4 x rw`).join('\n'));

test.each([
  ['/home/a', '8:1 /home/a'],
  ['/srv/a', '8:16 /a'],
  ['/srv', '8:16 /'],
  ['/srvother', '8:1 /srvother'],
  ['/mnt/two words/x', '0:6 /new/x'],
])('%s is %s in a sandbox', (host, line) => {
  expect(foreignMount([{ host, container: '/in' }], own, inside('0:9 / /', `${line} /in`))).toBeNull();
});

test('what is mounted there last counts, and a link of the image may lead elsewhere', () => {
  const placed = [{ host: '/srv/a', container: '/in' }];
  expect(foreignMount(placed, own, inside('8:16 /a /in', '8:1 /run /in'))).toContain(
    '/in is not /srv/a, which was checked, but /run',
  );
  expect(foreignMount(placed, own, inside('8:1 /a /in'))).not.toBeNull();
  expect(foreignMount(placed, own, inside('8:16 /a /real/in'))).toBeNull();
  expect(foreignMount(placed, own, inside('8:1 /a /real/in'))).toContain('something else');
});
