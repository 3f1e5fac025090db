import { expect, it } from 'vitest';
import { page, patient, serve } from '../../../test/kit/azure.ts';
import { giteaRunner } from '../gitea/release.ts';
import { gitlabRunner } from '../gitlab/release.ts';

const sum = 'a'.repeat(64);
const other = 'b'.repeat(64);
const plain = { 'Content-Type': 'text/plain' };

it('finds a file of GitLab in the list of its release', async () => {
  const list = `${other} *binaries/gitlab-runner-linux-arm64\n${sum.toUpperCase()} *binaries/gitlab-runner-linux-amd64\n`;
  await using server = await serve(page(200, list, plain));
  const project = gitlabRunner(server.url);
  expect(await project.sum(project.url('19.4.0', 'x64'), { signal: patient })).toBe(sum);
  expect(server.seen.map(({ url }) => url)).toEqual(['/v19.4.0/release.sha256']);
});

it('finds a file of Gitea in the one next to it, with and without its name', async () => {
  for (const text of [`${sum}  gitea-runner-1.0.8-linux-amd64\n`, `${sum}\n`]) {
    await using server = await serve(page(200, text, plain));
    const project = giteaRunner(server.url);
    expect(await project.sum(project.url('1.0.8', 'x64'), { signal: patient })).toBe(sum);
  }
});

it('checks nothing that it does not know, and says what it could not check', async () => {
  await using server = await serve(page(200, `${other} *binaries/else\n${other} *binaries/more\n${other} x\n`, plain));
  const project = gitlabRunner(server.url);
  expect(await project.sum('https://elsewhere.example/gitlab-runner', { signal: patient })).toBeNull();
  await expect(project.sum(project.url('19.4.0', 'x64'), { signal: patient })).rejects.toMatchObject({
    code: 'E_AGENT_PACKAGE',
    hint: expect.stringContaining('agent: { from: /path/to/gitlab-runner }'),
    message: expect.stringContaining('it has no checksum of binaries/gitlab-runner-linux-amd64'),
  });
  expect(() => project.url('19.4.0', 'mips')).toThrow('GitLab does not release runner 19.4.0 for Linux on mips.');
});
