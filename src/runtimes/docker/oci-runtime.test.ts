import { expect, test } from 'vitest';
import { ociObstacle } from './oci-runtime.ts';

const known = { Runtimes: { runc: {}, 'io.containerd.runc.v2': {}, runsc: {} } };

test.each([
  ['runsc', known, false, null],
  ['kata', known, false, 'the Engine knows only runc, runsc; add kata to "runtimes" in /etc/docker/daemon.json'],
  ['toString', known, false, 'the Engine knows only runc, runsc'],
  // Found by its name on the Engine's PATH, so nobody knows before it is tried.
  ['io.containerd.kata.v2', known, false, null],
  ['runsc', {}, false, null],
  ['runsc', known, true, 'Podman has one runtime for all containers'],
])('%s: %s', (name, info, isPodman, why) => {
  expect(ociObstacle(name, info, isPodman)).toEqual(why === null ? null : expect.stringContaining(why));
});
