/**
 * README's promise of containers, end to end and in the gate: `onejob run` in a pool with `containers: true` runs, builds and composes
 * containers. What else they do, and what becomes of them on bad days, is in `job-containers.test.ts`.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { clientImage } from '../support/engine-base.ts';
import { engineForPools, type PoolEngine } from '../support/job-containers.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** The job's engine reaches no registry, so its image is made of the sandbox itself. */
const makeImage = 'tar -C / -c bin etc tmp | docker import - box:1 >/dev/null';

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('a pool with containers', () => {
  let engine: PoolEngine;
  let home: Home;

  beforeAll(async () => {
    engine = await engineForPools();
    const box = `image: "${clientImage}", containers: true, user: "1000:1000", memory: 2GiB, stop_grace: 1s`;
    home = await engine.home(`pools: { box: { ${box} } }\n`);
    await home.up();
  }, 300_000);
  afterAll(async () => {
    await home?.close();
    await engine?.[Symbol.asyncDispose]();
  }, 120_000);

  /** Runs a script as a job; what it printed. */
  async function job(...lines: readonly string[]): Promise<string> {
    const { code, stdout, stderr } = await home.run('--pool', 'box', '--', 'sh', '-ec', lines.join('\n')).ended;
    expect(code, `${stdout}\n${stderr}`).toBe(0);
    return stdout;
  }

  test('a job runs containers, with its folder at the same path and their ports at its localhost', async () => {
    writeFileSync(join(home.cwd, 'sent'), 'from here\n');
    const said = await job(
      makeImage,
      'docker run --rm -v "$PWD:$PWD" -w "$PWD" box:1 sh -c "cat sent; echo made >made"',
      'cat made',
      'docker run -d -p 8088:80 box:1 sh -c "echo page >/tmp/index.html; httpd -f -p 80 -h /tmp" >/dev/null',
      'until wget -qO- http://127.0.0.1:8088/ 2>/dev/null; do sleep 0.1; done',
    );
    expect(said).toBe('from here\nmade\npage\n');
  }, 120_000);

  test('a job builds an image with BuildKit, its secrets and its caches', async () => {
    writeFileSync(
      join(home.cwd, 'Dockerfile'),
      'FROM box:1\nRUN --mount=type=cache,target=/c --mount=type=secret,id=s wc -c </run/secrets/s >/size\nCOPY sent /sent\n',
    );
    const said = await job(
      makeImage,
      'printf 12345 >secret',
      'docker build -q --secret id=s,src=secret -t mine . >/dev/null',
      'docker run --rm mine cat /size /sent',
    );
    expect(said).toBe('5\nfrom here\n');
  }, 120_000);

  test('a job brings up a compose file that builds, and waits for a healthy service', async () => {
    writeFileSync(
      join(home.cwd, 'compose.yaml'),
      `services:
  db: { image: "box:1", command: sleep 100, init: true, healthcheck: { test: [CMD, "true"], interval: 1s } }
  app:
    build: { context: ., dockerfile_inline: "FROM box:1\\nRUN echo built >/b\\n" }
    depends_on: { db: { condition: service_healthy } }
    command: sh -c "ping -c 1 db >/dev/null && cat /b"
`,
    );
    const said = await job(
      makeImage,
      'docker compose up -d --quiet-pull 2>/dev/null',
      // It may end before somebody who follows its log looks for it, and is then followed for ever.
      'docker wait $(docker compose ps -aq app) >/dev/null; docker compose logs --no-log-prefix app',
    );
    expect(said).toContain('built\n');
  }, 120_000);
});
