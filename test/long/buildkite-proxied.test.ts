/** Everything together on a host that reaches Buildkite by a proxy only, and trusts an authority of its own: the real agent in its sandbox. */
import { execFileSync, spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { agentOrSkip, buildkiteBench, expectClean, untilIdle } from '../support/buildkite.ts';
import { onejob } from '../support/onejob.ts';
import { proxyPassword, startProxy } from '../support/proxy.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { createAuthority, tlsFront } from '../support/tls-front.ts';

const deadEnd = 'http://127.0.0.1:1';

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl'))('behind a proxy', () => {
  test('jobs run, with log and artifacts, and their sandboxes hear nothing of the proxy', async ({ skip }) => {
    using ca = scratch();
    const authority = createAuthority(ca.path);
    await using bench = await buildkiteBench(agentOrSkip(skip), { publicHost: 'store.test' });
    const { buildkite } = bench;
    await using front = await tlsFront(authority.issue('agent.test'), buildkite.port);
    const { port: store } = new URL(buildkite.artifactHost);
    await using proxy = await startProxy({ 'agent.test:443': front.port, [`store.test:${store}`]: Number(store) });
    const env = { HTTPS_PROXY: proxy.url, HTTP_PROXY: proxy.url, NODE_USE_ENV_PROXY: '1', NODE_EXTRA_CA_CERTS: authority.file };
    const config = bench.config().replaceAll(buildkite.endpoint, 'https://agent.test/v3');
    await using here = await onejob({ config, env });
    const daemon = await here.up();
    await untilIdle(bench);

    const upload = 'echo kept > /tmp/kept && buildkite-agent artifact upload /tmp/kept && buildkite-agent meta-data set key value';
    const plain = await bench.job(`env; ${upload}`);
    expect(plain).toMatchObject({ exit: 0, artifacts: [{ state: 'finished', received: { content: Buffer.from('kept\n') } }] });
    expect(plain.log).not.toMatch(/^(https?_proxy|NODE_|ONEJOB_)/im);
    expect(plain.log).not.toMatch(new RegExp(`:${proxy.port}|${proxyPassword}`));
    // What a pipeline says of proxies is for what its job asks of others, not for the way to the broker.
    for (const more of [{ NO_PROXY: 'elsewhere.test' }, { no_proxy: 'elsewhere.test' }, {}]) {
      const proxied = await bench.job(upload, { env: { HTTP_PROXY: deadEnd, http_proxy: deadEnd, ...more } });
      expect(proxied, proxied.log).toMatchObject({ exit: 0, artifacts: [{ state: 'finished' }] });
    }

    const doctor = await here.cli(['doctor']).ended;
    expect(doctor.stdout).toContain(`https://agent.test/v3 is reached through the proxy 127.0.0.1:${proxy.port}.`);
    expect(doctor.stdout).not.toContain('Its broker reaches services');
    const status = await here.cli(['status', '--json']).ended;
    const processes = execFileSync('ps', ['-eo', 'args'], { encoding: 'utf8' });
    await daemon.stop();
    expect(spawnSync('grep', ['-rlaF', proxyPassword, here.stateDir], { encoding: 'utf8' }).stdout).toBe('');
    const { stdout, stderr } = await daemon.child.ended;
    for (const text of [doctor.stdout, doctor.stderr, status.stdout, stdout, stderr, processes])
      expect(text).not.toContain(proxyPassword);
    expect(proxy.seen.some((line) => line.startsWith(`POST http://store.test:${store}/`))).toBe(true);
    expect(proxy.seen).toContain('CONNECT agent.test:443');
    expectClean(bench);
  });
});
