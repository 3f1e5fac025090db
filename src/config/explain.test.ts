import { afterAll, expect, it } from 'vitest';
import { emptyEnvironment, Folder } from '../../test/kit/config.ts';
import { types } from '../cli/types.ts';
import { configCheck, configShow, formatShown } from './explain.ts';
import { lookAtHost } from './host-look.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const file = `services:
  s: { type: buildkite, token: { env: TOKEN_OF_S, expires: 2030-01-31 } }
defaults:
  memory: 2GiB
  env: { A: 1, B: two words }
pools:
  lab:
    service: s
    timeout: 90m
    env: { B: 3 }
    volumes: ["/a:/b:V"]
    devices: { count: 2, uuid: [GPU-1234, GPU-5678] }
    caches: ["depot:/depot"]
    trust: { forks: refuse }
on_stop: drain
`;

it('shows what holds and where it comes from, secrets only by reference', async () => {
  const env = emptyEnvironment({ ONEJOB_STATE_DIR: '/state', TOKEN_OF_S: 'hunter2' });
  const checked = await folder.load(file, { env });
  const shown = new Map(configShow(checked).map((one) => [one.key, `${one.value} (${one.origin.replace(`${folder.path}/`, '')})`]));
  expect(Object.fromEntries(shown)).toMatchObject({
    config: `${folder.path}/config.yml (flag --config)`,
    state_dir: '/state (environment ONEJOB_STATE_DIR)',
    socket: '/state/onejob.sock (environment ONEJOB_STATE_DIR)',
    log_limit: '64MiB (default)',
    'disk.min_free': '10% (default)',
    on_stop: 'drain (config.yml:15)',
    'services.s.token': 'environment variable TOKEN_OF_S, expires 2030-01-31 (config.yml:2)',
    'pools.lab.memory': '2GiB (config.yml:4)',
    'pools.lab.env.A': '1 (config.yml:5)',
    'pools.lab.env.B': '3 (config.yml:10)',
    'pools.lab.timeout': '1h30m (config.yml:9)',
    'pools.lab.volumes': expect.stringContaining('/a:/b:V:ro'),
    'pools.lab.devices.count': '2 (config.yml:12)',
    'pools.lab.stop_grace': '35s (default)',
    'pools.lab.trust.forks': 'refuse (config.yml:14)',
    'pools.lab.trust.others': 'run-without-secrets (default)',
    'pools.lab.caches': expect.stringContaining('depot:/depot:rw'),
    'pools.lab.cache_limit': '50GiB (default)',
    'services.s.endpoint': 'https://agent.buildkite.com/v3 (default)',
    'services.s.hold_timeout': '10m (default)',
    'pools.lab.cpus': 'none (default)',
  });
  expect(formatShown(configShow(checked))).not.toContain('hunter2');
});

it('without a file everything is a default', async () => {
  const { checkConfig } = await import('./load.ts');
  const shown = configShow(await checkConfig({ types, look: lookAtHost, env: emptyEnvironment() }));
  expect(new Set(shown.map((one) => one.origin))).toEqual(new Set(['default']));
  expect(formatShown(shown)).toMatch(/^pools\.default\.agents: 2 +# default$/m);
});

it('config check counts', async () => {
  const checked = await folder.load(file);
  const { ok, text } = configCheck(checked);
  expect(ok).toBe(true);
  expect(text.replaceAll(`${folder.path}/`, '').trim().split('\n')).toEqual(['config.yml is valid: 1 pool, 1 agent']);
});

it('config check lists problems, and counts them', async () => {
  const { ok, text } = configCheck(await folder.load('on_stop: x\nkeep_jobs: y\n'));
  expect(ok).toBe(false);
  expect(text).toMatch(/on_stop.*\n.*keep_jobs.*\n2 problems, 0 warnings\n$/);
});
