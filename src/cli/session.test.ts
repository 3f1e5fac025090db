import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { type Environment, readEnvironment } from '../config/environment.ts';
import { findPlace } from './session.ts';

const none = {};
const env = (more: Partial<Environment> = {}): Environment => ({ ...readEnvironment({ HOME: '/nowhere' }), uid: 1000, ...more });

test('somebody else than root also tries the socket that root shares: of the state directory that was named, or the usual one', async () => {
  using dir = scratch();
  expect((await findPlace(none, env(), dir.path)).systemSocket).toBe('/run/onejob/onejob.sock');
  const named = await findPlace({ ...none, stateDir: '/srv/onejob' }, env(), dir.path);
  expect(named).toMatchObject({
    socket: '/srv/onejob/onejob.sock',
    systemSocket: expect.stringMatching(/^\/run\/onejob\/[0-9a-f]{12}\.sock$/),
  });
  const config = join(dir.path, 'c.yml');
  writeFileSync(config, 'state_dir: /srv/onejob\n');
  expect((await findPlace({ ...none, config }, env(), dir.path)).systemSocket).toBe(named.systemSocket);
});

test('root, and a user who names a socket, try no other', async () => {
  using dir = scratch();
  expect((await findPlace({ ...none, stateDir: '/srv/onejob' }, env({ uid: 0 }), dir.path)).systemSocket).toBe(null);
  const socket = await findPlace({ ...none, socket: '/tmp/x.sock' }, env(), dir.path);
  expect([socket.systemSocket, socket.isSocketNamed]).toEqual([null, true]);
  expect((await findPlace(none, env({ socket: '/tmp/x.sock' }), dir.path)).isSocketNamed).toBe(true);
});
