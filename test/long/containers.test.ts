/**
 * README's promise of containers, end to end and in the gate: `onejob run` in a pool with `containers: true` runs, builds and composes
 * containers. What else they do, and what becomes of them on bad days, is in `job-containers.test.ts`.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { boxes, makeImage } from '../support/job-containers.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('a pool with containers', () => {
  const box = boxes('user: "1000:1000", memory: 2GiB');

  test('a job runs containers, with its folder at the same path and their ports at its localhost', async () => {
    writeFileSync(join(box.home.cwd, 'sent'), 'from here\n');
    const said = await box.job(
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
      join(box.home.cwd, 'Dockerfile'),
      'FROM box:1\nRUN --mount=type=cache,target=/c --mount=type=secret,id=s wc -c </run/secrets/s >/size\nCOPY sent /sent\n',
    );
    const said = await box.job(
      makeImage,
      'printf 12345 >secret',
      'docker build -q --secret id=s,src=secret -t mine . >/dev/null',
      'docker run --rm mine cat /size /sent',
    );
    expect(said).toBe('5\nfrom here\n');
  }, 120_000);

  test('a job brings up a compose file that builds, and waits for a healthy service', async () => {
    writeFileSync(
      join(box.home.cwd, 'compose.yaml'),
      `services:
  db: { image: "box:1", command: sleep 100, init: true, healthcheck: { test: [CMD, "true"], interval: 1s } }
  app:
    build: { context: ., dockerfile_inline: "FROM box:1\\nRUN echo built >/b\\n" }
    depends_on: { db: { condition: service_healthy } }
    command: sh -c "ping -c 1 db >/dev/null && cat /b"
`,
    );
    const said = await box.job(
      makeImage,
      'docker compose up -d --quiet-pull 2>/dev/null',
      // It may end before somebody who follows its log looks for it, and is then followed for ever.
      'docker wait $(docker compose ps -aq app) >/dev/null; docker compose logs --no-log-prefix app',
    );
    expect(said).toContain('built\n');
  }, 120_000);
});
