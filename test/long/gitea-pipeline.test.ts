/**
 * This project's own pipeline on a pool of onejob: `.gitea/workflows/ci.yml` as it is, on the real Gitea with its real runner. What stands in:
 * `.ci/run`, because the whole gate would run for a quarter of an hour and needs an Engine of its own; the action that checks out, and the
 * image with Node.js, because neither is on this machine. The container of the job is not privileged: onejob's runners do not allow it.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, globSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { buildkiteImages, ensureBuildkiteImages } from '../support/buildkite-images.ts';
import { engineAt } from '../support/engine-http.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const root = join(import.meta.dirname, '../..');
const read = (path: string): string => readFileSync(join(root, path), 'utf8');

const workflow = '.gitea/workflows/ci.yml';
const [, image = ''] = /^ {6}image: (\S+)$/m.exec(read(workflow)) ?? [];

/** Two real pieces of the gate: that Bash can read it, and that every page of the docs has its place. */
const shortGate = `#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
bash -n .ci/gate
if [ -e /dev/kmsg ]; then echo 'the container has all rights'; fi
node --input-type=module -e '
import { readParts } from "./scripts/site/parts.ts";
console.log(readParts(process.cwd()).length, "parts of the documentation");
'
`;

/** Gets the commit from the server with the token of the job, as actions/checkout does where there is no Git. */
const checkout = {
  'action.yml':
    'name: checkout\ninputs: { persist-credentials: { default: "true" }, token: { default: "${{ github.token }}" } }\nruns: { using: node24, main: index.js }\n',
  'index.js': `const { execFileSync } = require('node:child_process');
const { writeFileSync } = require('node:fs');
const { GITHUB_SERVER_URL, GITHUB_REPOSITORY, GITHUB_SHA, GITHUB_WORKSPACE, INPUT_TOKEN } = process.env;
(async () => {
  const url = GITHUB_SERVER_URL + '/api/v1/repos/' + GITHUB_REPOSITORY + '/archive/' + GITHUB_SHA + '.tar.gz';
  const answer = await fetch(url, { headers: { authorization: 'token ' + INPUT_TOKEN } });
  if (!answer.ok) throw new Error(url + ' answered ' + answer.status);
  writeFileSync('/tmp/source.tgz', Buffer.from(await answer.arrayBuffer()));
  execFileSync('tar', ['-xzf', '/tmp/source.tgz', '-C', GITHUB_WORKSPACE, '--strip-components=1']);
  execFileSync('git', ['init', '-q', GITHUB_WORKSPACE]);
})().catch((error) => { console.log(error); process.exit(1); });
`,
};

/** Makes the image of the workflow, if this machine lacks it, from the default image, Git and this Node.js. */
async function ensureNodeImage(): Promise<AsyncDisposable> {
  using engine = engineAt();
  if ((await engine.call('GET', `/images/${image}/json`)).status === 200) return { [Symbol.asyncDispose]: async () => {} };
  await ensureBuildkiteImages();
  using context = scratch();
  copyFileSync(process.execPath, join(context.path, 'node'));
  writeFileSync(
    join(context.path, 'Dockerfile'),
    `FROM ${buildkiteImages.git}\nCOPY node /usr/local/bin/node\nRUN node --version\n`,
  );
  execFileSync('docker', ['build', '-q', '-t', image, context.path], { stdio: 'pipe' });
  return { [Symbol.asyncDispose]: async () => void execFileSync('docker', ['rmi', image], { stdio: 'pipe' }) };
}

describe.skipIf(lacks('docker', 'image', 'gitea'))("this project's own pipeline on the real Gitea", () => {
  const stack = new AsyncDisposableStack();
  let gitea: Awaited<ReturnType<typeof startGitea>>;
  beforeAll(async () => {
    gitea = stack.use(await startGitea());
    stack.use(await ensureNodeImage());
    await gitea.repository('actions/checkout', {});
    await gitea.push('actions/checkout', checkout, 'v4');
    await gitea.api('PATCH', '/repos/actions/checkout', { private: false });
  }, 120_000);
  afterAll(() => stack.disposeAsync());

  test('a commit passes, and one with a page that has no place fails by its own fault', { timeout: 300_000 }, async () => {
    const pages = globSync(['docs/**/*.md', '*.md'], { cwd: root });
    const files = [workflow, '.ci/count.cjs', 'scripts/site/parts.ts', ...pages].map((path) => [path, read(path)] as const);
    await using home = await onejob({
      config: `services:
  forge: { type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, poll: 1s, agent: { from: ${giteaPrograms.runner} } }
pools:
  ci:
    service: forge
    queue: acme
    tags: ubuntu-latest
    agents: 1
    image: "debian:stable-slim"
    network: default
    volumes: ["/var/run/docker.sock:/var/run/docker.sock:rw"]
`,
      env: { GITEA_TOKEN: await gitea.tokenFor('write:organization', 'read:repository') },
    });
    await gitea.repository('acme/onejob', { ...Object.fromEntries(files), '.ci/gate': read('.ci/run'), '.ci/run': shortGate });
    const daemon = await home.up();
    const over = (count: number) =>
      gitea.until(
        (all) => all.length === count && all.every(({ status }) => status === 'completed'),
        120_000,
        '/repos/acme/onejob',
      );
    const [first] = await over(1);
    const log = await gitea.log('acme/onejob', first?.id ?? 0);
    expect(log).toContain('5 parts of the documentation');
    expect(log).not.toMatch(/has all rights$/m);
    expect(first?.conclusion).toBe('success');
    await gitea.push('acme/onejob', { 'docs/lost.md': '# Lost\n' });
    const [, second] = await over(2);
    expect(await gitea.log('acme/onejob', second?.id ?? 0)).toContain('No part of the documentation has docs/lost.md');
    const verdicts = async () => (await home.api.jobs({ all: true, pool: null })).map(({ verdict }) => verdict?.kind);
    await expect.poll(verdicts, { timeout: 60_000 }).toEqual(['passed', 'code']);
    await daemon.stop();
  });
});
