/** A host that reaches Buildkite by a proxy only, and trusts an authority of its own: the daemon, and the filter for untrusted jobs. */
import { execFileSync, spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { agentOrSkip, buildkiteBench, expectClean } from '../support/buildkite.ts';
import { fork } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { onejob } from '../support/onejob.ts';
import { proxyPassword, startProxy } from '../support/proxy.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { createAuthority, tlsFront } from '../support/tls-front.ts';

const deadEnd = 'http://127.0.0.1:1';

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl'))('behind a proxy', () => {
  test('untrusted jobs run, with log and artifacts, and their sandboxes hear nothing of the proxy', async ({ skip }) => {
    using ca = scratch();
    const authority = createAuthority(ca.path);
    await using bench = await buildkiteBench(agentOrSkip(skip));
    const { buildkite } = bench;
    await using front = await tlsFront(authority.issue('agent.test'), buildkite.port);
    await using proxy = await startProxy({ 'agent.test:443': front.port });
    const env = { HTTPS_PROXY: proxy.url, HTTP_PROXY: proxy.url, NODE_USE_ENV_PROXY: '1', NODE_EXTRA_CA_CERTS: authority.file };
    const config = bench.config().replaceAll(buildkite.endpoint, 'https://agent.test/v3');
    await using here = await onejob({ config, env });
    const daemon = await here.up();
    await untilAsking(bench);

    const upload = 'echo kept > /tmp/kept && buildkite-agent artifact upload /tmp/kept && buildkite-agent meta-data set key value';
    const plain = await bench.job(`env; ${upload}`, fork);
    expect(plain).toMatchObject({ exit: 0, artifacts: [{ state: 'finished', received: { content: Buffer.from('kept\n') } }] });
    expect(plain.log).not.toMatch(/^(https?_proxy|NODE_|ONEJOB_)/im);
    expect(plain.log).not.toMatch(new RegExp(`:${proxy.port}|${proxyPassword}`));
    // What a pipeline says of proxies is for what its job asks of others, not for the way to the filter.
    for (const more of [{ NO_PROXY: 'elsewhere.test' }, { no_proxy: 'elsewhere.test' }, {}]) {
      const set = { ...fork, env: { HTTP_PROXY: deadEnd, http_proxy: deadEnd, ...more } };
      const proxied = await bench.job('buildkite-agent meta-data set key value', set);
      expect(proxied, proxied.log).toMatchObject({ exit: 0, metaData: { key: 'value' } });
    }

    const doctor = await here.cli(['doctor']).ended;
    expect(doctor.stdout).toContain(`https://agent.test/v3 is reached through the proxy 127.0.0.1:${proxy.port}.`);
    const status = await here.cli(['status', '--json']).ended;
    const processes = execFileSync('ps', ['-eo', 'args'], { encoding: 'utf8' });
    await daemon.stop();
    expect(spawnSync('grep', ['-rlaF', proxyPassword, here.stateDir], { encoding: 'utf8' }).stdout).toBe('');
    const { stdout, stderr } = await daemon.child.ended;
    for (const text of [doctor.stdout, doctor.stderr, status.stdout, stdout, stderr, processes])
      expect(text).not.toContain(proxyPassword);
    expect(proxy.seen).toContain('CONNECT agent.test:443');
    expectClean(bench);
  });
});
