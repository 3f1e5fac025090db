import { expect, it } from 'vitest';
import { mountOf, mountTypeOf, serversIn } from './mountinfo.ts';

it('finds the mount that a path lies on', () => {
  const mountinfo = [
    '22 1 254:0 / / rw,relatime - ext4 /dev/vda rw',
    '40 22 0:40 / /home rw shared:1 - nfs4 host:/home rw',
    '41 40 0:41 / /home/a\\040b rw - fuse.sshfs x rw',
    '42 22 0:42 / /ho rw - tmpfs x rw',
  ].join('\n');
  expect(mountTypeOf('/home/a b/state', mountinfo)).toBe('fuse.sshfs');
  expect(mountTypeOf('/home/c', mountinfo)).toBe('nfs4');
  expect(mountTypeOf('/homestead', mountinfo)).toBe('ext4');
  expect(mountOf('/home/c', mountinfo)).toEqual({ point: '/home', type: 'nfs4', options: ['rw'] });
});

it.each(['wekafs', 'panfs', 'orangefs', 'ocfs2', 'gfs2', 'virtiofs', 'vboxsf', 'nfs4'])('%s may wait for a server', (type) => {
  const mountinfo = `20 1 0:20 / / rw - ext4 /dev/sda rw\n21 20 0:21 / /data rw - ${type} x rw`;
  expect(serversIn(mountinfo)('/data/x')).toBe('/data');
  expect(serversIn(mountinfo)('/srv')).toBeNull();
});
