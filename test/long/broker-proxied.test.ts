/** The broker as a process whose host reaches the internet by a proxy only, and trusts an authority of its own. */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { BrokerEvent, Phase } from '../../src/ci/buildkite/broker/protocol.ts';
import { slotOffer } from '../../src/ci/buildkite/broker/testing.ts';
import { joinBroker, serviceHandler } from '../../src/ci/buildkite/broker/testing-http.ts';
import { serviceToken, testService } from '../../src/ci/buildkite/broker/testing-service.ts';
import { handedOn } from '../../src/config/proxies.ts';
import { startChild } from '../support/child.ts';
import { behindProxy, proxyPassword } from '../support/proxy.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { createAuthority } from '../support/tls-front.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
const inPhase = (phase: Phase) => (event: BrokerEvent) => event.kind === 'agent' && event.agent.phase === phase;

describe.skipIf(lacks('openssl'))('behind a proxy', () => {
  it('the broker registers, takes a job and ends it, and shows the proxy’s password to nobody', async () => {
    using folder = scratch();
    using ca = scratch();
    const authority = createAuthority(ca.path);
    const service = testService();
    const names = { secure: ['agent.test:443'], plain: [] };
    await using behind = await behindProxy(createServer(serviceHandler(service)), authority.issue('agent.test'), names);
    const { proxy } = behind;
    const dir = join(folder.path, 'state');
    const socket = join(dir, 'broker', 'broker.sock');
    const given = { NODE_USE_ENV_PROXY: '1', HTTPS_PROXY: proxy.url, NODE_EXTRA_CA_CERTS: authority.file };
    const child = startChild(program, ['broker', '--state-dir', dir, '--socket', socket], {
      cwd: folder.path,
      env: { PATH: process.env.PATH, ...handedOn(given, folder.path) },
    });
    try {
      await child.says(/broker listens/);
      const manager = await joinBroker(socket);
      const offers = (...wanted: readonly (typeof slotOffer)[]) => ({
        services: [{ name: 'bk', endpoint: 'https://agent.test/v3', token: serviceToken }],
        offers: wanted,
        complete: true,
      });
      expect(manager.events[0]).toMatchObject({ kind: 'state', proxy: `127.0.0.1:${proxy.port}` });
      proxy.mood = 407;
      await manager.post('/v1/offers', offers(slotOffer));
      const away = await manager.until(({ kind }) => kind === 'service');
      expect(away).toMatchObject({ health: { kind: 'away', why: expect.stringContaining('the proxy before it answered 407') } });
      proxy.mood = 'well';
      service.add('job-1');
      const accepted = await manager.until(inPhase('accepted'));
      const id = accepted.kind === 'agent' ? accepted.agent.id : '';
      await manager.post(`/v1/agents/${id}/hand`, { agent: 'a1', trusted: true, secrets: [] });
      // Tunnels that it kept are gone; it makes others.
      proxy.cut();
      await manager.post(`/v1/agents/${id}/end`, { reason: 'the sandbox is gone', signalReason: 'process_run_error' });
      await manager.until((event) => inPhase('gone')(event) && event.kind === 'agent' && event.agent.id === id);
      expect(service.jobs.get('job-1')).toMatchObject({ state: 'finished', log: 'the sandbox is gone\r\n' });
      expect(new Set(proxy.seen)).toEqual(new Set(['CONNECT agent.test:443']));
      const cmdline = readFileSync(`/proc/${child.pid}/cmdline`, 'latin1');
      for (const text of [cmdline, child.stdout, child.stderr, JSON.stringify(manager.events)])
        expect(text).not.toContain(proxyPassword);
      manager.close();
    } finally {
      await child.kill();
    }
  });
});
