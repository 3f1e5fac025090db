import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { emptyEnvironment, Folder, host } from '../../test/kit/config.ts';
import { types } from '../cli/types.ts';
import { lookAtHost } from './host-look.ts';
import { checkConfig } from './load.ts';
import { choosePaths, findConfig, socketProblem } from './paths.ts';

const usual = { stateDir: null, socket: null };
const written = (path: string) => ({ path, from: { source: 'config.yml', line: 1, column: 1 } });

describe('where state and socket are', () => {
  const at = (flags: object, variables: Record<string, string>, uid: number, file: Parameters<typeof choosePaths>[3] = usual) => {
    const { stateDir, socket } = choosePaths(flags, emptyEnvironment(variables, uid), '/cwd', file);
    return [stateDir.path, socket.path];
  };

  it('root', () => expect(at({}, {}, 0)).toEqual(['/var/lib/onejob', '/run/onejob/onejob.sock']));
  it('a user', () =>
    expect(at({}, { XDG_RUNTIME_DIR: '/run/user/1' }, 1)).toEqual([
      '/nowhere/.local/state/onejob',
      '/run/user/1/onejob/onejob.sock',
    ]));
  it('a user without a runtime directory', () =>
    expect(at({}, {}, 1)).toEqual(['/nowhere/.local/state/onejob', '/nowhere/.local/state/onejob/onejob.sock']));
  it('XDG_STATE_HOME; a relative one is invalid', () => {
    expect(at({}, { XDG_STATE_HOME: '/st' }, 1)[0]).toBe('/st/onejob');
    expect(at({}, { XDG_STATE_HOME: 'st' }, 1)[0]).toBe('/nowhere/.local/state/onejob');
  });
  it('a given state directory has its own socket', () => {
    expect(at({}, {}, 0, { stateDir: written('/f'), socket: null })).toEqual(['/f', '/f/onejob.sock']);
    expect(at({}, { ONEJOB_STATE_DIR: '/e' }, 0, { stateDir: written('/f'), socket: null })).toEqual(['/e', '/e/onejob.sock']);
    expect(at({ stateDir: 'rel' }, { ONEJOB_STATE_DIR: '/e' }, 0)).toEqual(['/cwd/rel', '/cwd/rel/onejob.sock']);
  });
  it('default < file < environment < flag', () => {
    const file = { stateDir: null, socket: written('/f.sock') };
    expect(at({}, {}, 0, file)[1]).toBe('/f.sock');
    expect(at({}, { ONEJOB_SOCKET: '/e.sock' }, 0, file)[1]).toBe('/e.sock');
    expect(at({ socket: '/g.sock' }, { ONEJOB_SOCKET: '/e.sock' }, 0, file)[1]).toBe('/g.sock');
    expect(at({ stateDir: '/s', socket: '/g.sock' }, {}, 0)).toEqual(['/s', '/g.sock']);
  });
});

it('a socket path over 100 bytes is refused, with how long it is and who gave it', () => {
  const path = `/${'ä'.repeat(50)}`;
  expect(socketProblem({ path: `/${'a'.repeat(99)}`, from: written('').from })).toBeNull();
  expect(socketProblem({ path, from: { source: 'ONEJOB_STATE_DIR', line: null, column: null } })).toMatchObject({
    source: 'ONEJOB_STATE_DIR',
    message: `the socket path ${path} has 101 bytes, but at most 100 are possible; give a shorter one with --socket`,
  });
});

it("the config: flag, then variable, then the user's own", async () => {
  using folder = new Folder();
  mkdirSync(join(folder.path, 'onejob'));
  const own = folder.write('onejob/config.yml', 'on_stop: drain\n');
  const env = (variables: Record<string, string> = {}) => emptyEnvironment({ XDG_CONFIG_HOME: folder.path, ...variables });
  expect(findConfig({}, env(), '/cwd')?.path).toBe(own);
  expect(findConfig({}, env({ ONEJOB_CONFIG: 'e.yml' }), '/cwd')?.path).toBe('/cwd/e.yml');
  expect(findConfig({ config: 'f.yml' }, env({ ONEJOB_CONFIG: 'e.yml' }), '/cwd')?.path).toBe('/cwd/f.yml');
  const { config } = await checkConfig({ types, look: lookAtHost, env: env(), host });
  expect([config.path, config.onStop]).toEqual([own, 'drain']);
});
