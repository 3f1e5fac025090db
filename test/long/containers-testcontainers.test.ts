/** Testcontainers in a job, unchanged, with the engine of its agent. Its reaper is played: what tells it what to remove is the real client. */
import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { clientImage } from '../support/engine-base.ts';
import { boxes, makeWholeImage } from '../support/job-containers.ts';
import { lacks } from '../support/require.ts';
import { testcontainers } from '../support/testcontainers.ts';

/** The docker command, and the libraries that Node needs. */
const image = {
  name: 'onejob-test/docker-and-libraries:1',
  dockerfile: `FROM debian:trixie-slim AS all
RUN mkdir -p /c/usr/lib/x86_64-linux-gnu; \\
    cd /usr/lib/x86_64-linux-gnu && cp -L libstdc++.so.6 libgcc_s.so.1 libm.so.6 libdl.so.2 libpthread.so.0 libc.so.6 /c/usr/lib/x86_64-linux-gnu/
FROM ${clientImage}
COPY --from=all /c/ /
`,
};

/** One connection to the reaper: filters until it closes, each acknowledged; then what they name goes (moby-ryuk, `reaper.go`). */
const reap = `#!/bin/sh
filters=''
while read -r line; do
  [ -z "$line" ] || filters="$filters $(echo "$line" | sed 's/&/ /g; s/label=/--filter=label=/g')"
  echo ACK
done
docker ps -aq $filters | grep -v "$(hostname)" | xargs -r docker rm -f >/dev/null
docker network ls -q $filters | xargs -r docker network rm >/dev/null
`;

const makeImages = [
  `printf '%s' '${reap.replaceAll("'", "'\\''")}' >/tmp/reap && chmod 755 /tmp/reap`,
  makeWholeImage,
  `printf 'FROM box:1\\nCMD ["sh", "-c", "echo Started; exec nc -ll -p 8080 -e /tmp/reap"]\\n' | docker build -q -t reaper:1 - >/dev/null`,
];

const script = `
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import { once } from 'node:events';
const { GenericContainer, Network, Wait } = createRequire('/testcontainers/index.js')('testcontainers');
const network = await new Network().start();
const server = await new GenericContainer('box:1')
  .withCommand(['sh', '-c', 'echo ready; exec nc -ll -p 80 -e cat /sent'])
  .withExposedPorts(80).withNetwork(network).withNetworkAliases('server')
  .withCopyContentToContainer([{ content: 'hello', target: '/sent' }])
  .withBindMounts([{ source: process.cwd(), target: '/w', mode: 'ro' }])
  .withTmpFs({ '/t': 'rw' })
  .withWaitStrategy(Wait.forAll([Wait.forLogMessage('ready'), Wait.forListeningPorts()]))
  .start();
const [data] = await once(connect(server.getMappedPort(80), server.getHost()), 'data');
console.log('from its port:', String(data));
console.log('from its folder:', (await server.exec(['cat', '/w/name'])).output.trim());
const healthy = await new GenericContainer('box:1').withCommand(['sleep', '60'])
  .withHealthCheck({ test: ['CMD', 'true'], interval: 500, retries: 5, startPeriod: 0, timeout: 1000 })
  .withWaitStrategy(Wait.forHealthCheck()).withNetwork(network).start();
console.log('healthy:', (await healthy.exec(['sh', '-c', 'nc server 80 </dev/null'])).output);
await healthy.stop();
process.exit(0);
`;

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase', 'testcontainers'))('Testcontainers in a job', () => {
  const volumes = [`${testcontainers}:/testcontainers`, `${dirname(dirname(process.execPath))}:/node`];
  const box = boxes(`memory: 4GiB, volumes: ${JSON.stringify(volumes)}`, { image });

  test('containers have ports, files, names and health, and those that a test forgot are reaped', async () => {
    writeFileSync(join(box.home.cwd, 'name'), 'workspace\n');
    writeFileSync(join(box.home.cwd, 'test.mjs'), script);
    const said = await box.job(
      ...makeImages,
      'export RYUK_CONTAINER_IMAGE=reaper:1',
      '/node/bin/node test.mjs',
      'until [ -z "$(docker ps -q --filter label=org.testcontainers=true | grep -v "$(docker ps -q --filter ancestor=reaper:1)")" ]; do sleep 0.2; done',
      // The reaper removes the network after the containers.
      'until [ -z "$(docker network ls -q --filter label=org.testcontainers=true)" ]; do sleep 0.2; done',
      'echo reaped',
    );
    expect(said).toBe('from its port: hello\nfrom its folder: workspace\nhealthy: hello\nreaped\n');
  }, 240_000);
});
