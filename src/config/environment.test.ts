import { expect, it } from 'vitest';
import { readEnvironment } from './environment.ts';

it('absent and empty variables are the same', () => {
  const bare = readEnvironment({ HOME: '/h' }, 5);
  expect(readEnvironment({ HOME: '/h', ONEJOB_CONFIG: '', DOCKER_HOST: '', NO_COLOR: '', CI: '' }, 5)).toEqual(bare);
  expect(bare).toEqual({
    config: null,
    stateDir: null,
    socket: null,
    host: null,
    hasDisplay: false,
    home: '/h',
    configHome: '/h/.config',
    cacheHome: '/h/.cache',
    stateHome: '/h/.local/state',
    runtimeDir: null,
    docker: { host: null, tlsVerify: false, certPath: null, context: null, config: '/h/.docker', runtimeDir: null },
    proxies: { http: null, https: null, none: '' },
    handedOn: {},
    noColor: false,
    forceColor: false,
    isDumb: false,
    crashAt: null,
    path: '/usr/local/bin:/usr/bin:/bin',
    hostRoot: null,
    uid: 5,
    ignored: [],
    sockets: [],
    serviceManager: null,
  });
});

it('Docker is found as its own CLI finds it', () => {
  const { docker } = readEnvironment({
    HOME: '/h',
    DOCKER_HOST: 'tcp://a:2376',
    DOCKER_TLS_VERIFY: '0',
    DOCKER_CERT_PATH: '/c',
    DOCKER_CONTEXT: 'far',
    DOCKER_CONFIG: '/d',
    XDG_RUNTIME_DIR: '/run/user/5',
  });
  expect(docker).toEqual({
    host: 'tcp://a:2376',
    tlsVerify: true,
    certPath: '/c',
    context: 'far',
    config: '/d',
    // Where a rootless Engine has its socket.
    runtimeDir: '/run/user/5',
  });
});

it('a service manager is there if it waits for messages, and its watchdog is counted in milliseconds', () => {
  const { serviceManager } = readEnvironment({ NOTIFY_SOCKET: '/run/systemd/notify', WATCHDOG_USEC: '180000000' });
  expect(serviceManager).toEqual({ socket: '/run/systemd/notify', watchdog: 180_000 });
  expect(readEnvironment({ NOTIFY_SOCKET: '@abstract' }).serviceManager).toEqual({ socket: '@abstract', watchdog: null });
  expect(readEnvironment({ WATCHDOG_USEC: '180000000' }).serviceManager).toBeNull();
});

it('cannot be changed', () => {
  const env = readEnvironment({});
  expect(() => Object.assign(env, { uid: 0 })).toThrow(TypeError);
});

it('sockets of the service manager are for the process that it started only', () => {
  const variables = { LISTEN_FDS: '2', LISTEN_PID: '77', LISTEN_FDNAMES: 'api:join' };
  expect(readEnvironment(variables, 0, 77).sockets).toEqual([3, 4]);
  expect(readEnvironment(variables, 0, 78).sockets).toEqual([]);
  for (const LISTEN_FDS of ['-1', 'x', '1000000', ''])
    expect(readEnvironment({ ...variables, LISTEN_FDS }, 0, 77).sockets).toEqual([]);
});
