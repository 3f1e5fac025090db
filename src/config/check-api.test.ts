import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { types } from '../cli/types.ts';
import { readEnvironment } from './environment.ts';
import { lookAtHost } from './host-look.ts';
import { checkConfig, loadConfig } from './load.ts';

/** What is wrong with `api`, and what comes of it. */
async function check(yaml: string) {
  using dir = scratch();
  const file = join(dir.path, 'config.yml');
  writeFileSync(file, `api: ${yaml}\n`);
  const env = readEnvironment({ HOME: dir.path, ONEJOB_CONFIG: file }, 0);
  const { errors, warnings, config } = await checkConfig({ types, look: lookAtHost, env });
  return { problems: [...errors, ...warnings].map(({ key, message }) => `${key}: ${message}`), api: config.api };
}

test('an address of this host alone needs nothing more', async () => {
  for (const [written, host] of [
    ['127.0.0.1:7717', '127.0.0.1'],
    ['localhost:7717', 'localhost'],
    ['[::1]:7717', '::1'],
  ])
    expect(await check(`{ listen: "${written}" }`)).toEqual({
      problems: [],
      api: { listen: { host, port: 7717 }, tls: null, behindProxy: false, hosts: [] },
    });
});

test('an address that others can reach needs TLS or a proxy', async () => {
  expect((await check('{ listen: "192.168.1.7:443" }')).problems).toEqual([
    expect.stringMatching(/^api\.listen: is 192\.168\.1\.7, which others can reach.*"tls_cert".*"behind_proxy: true"/),
  ]);
  expect((await check('{ listen: "192.168.1.7:443", behind_proxy: true, hosts: [ci.example.org] }')).problems).toEqual([]);
  expect((await check('{ listen: "0.0.0.0:443", behind_proxy: true }')).problems).toEqual([
    expect.stringMatching(/^api\.hosts: is missing/),
  ]);
});

test.each([
  ['{ listen: "7717" }', /^api\.listen: expected an address and a port/],
  ['{ listen: "ci.example.org:7717" }', /^api\.listen: expected an address/],
  ['{ listen: "127.0.0.1:99999" }', /^api\.listen: expected an address/],
  ['{ listen: "::1:7717" }', /^api\.listen: expected an address/],
  ['{ hosts: [ci.example.org] }', /^api\.hosts: is not used: "listen" is missing/],
  ['{ listen: "127.0.0.1:1", hosts: ["https://ci.example.org/"] }', /^api\.hosts\[0\]: .* is not the name of a host/],
  ['{ listen: "127.0.0.1:1", tls_cert: /etc/hosts }', /^api\.tls_cert: needs "tls_key"/],
  [
    '{ listen: "127.0.0.1:1", tls_cert: /etc/hosts, tls_key: /nowhere/key }',
    /^api\.tls_cert: .*\/nowhere\/key cannot be read \(ENOENT\)/,
  ],
  ['{ listen: "127.0.0.1:1", tls_cert: /etc/hosts, tls_key: /etc/hosts }', /^api\.tls_cert: cannot be used with "tls_key"/],
  ['{ lisen: "127.0.0.1:1" }', /^api\.lisen: unknown key; did you mean "listen"/],
])('%s', async (yaml, problem) => {
  expect((await check(yaml)).problems).toEqual([expect.stringMatching(problem)]);
});

test('a certificate that cannot be used is wrong, but keeps no daemon from starting', async () => {
  using dir = scratch();
  const file = join(dir.path, 'config.yml');
  writeFileSync(file, 'api: { listen: "127.0.0.1:1", tls_cert: /etc/hosts, tls_key: /nowhere/key }\n');
  const env = readEnvironment({ HOME: dir.path, ONEJOB_CONFIG: file }, 0);
  await expect(loadConfig({ types, look: lookAtHost, env })).rejects.toThrow('/nowhere/key cannot be read (ENOENT)');
  const { config, warnings } = await loadConfig({ types, look: lookAtHost, env, starting: true });
  expect(warnings).toEqual([expect.objectContaining({ key: 'api.tls_cert', level: 'warning' })]);
  expect(config.api?.tls).toEqual({ cert: '/etc/hosts', key: '/nowhere/key' });
});
