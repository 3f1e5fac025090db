/**
 * The power fails after each step of what writes a file: the next start finds the whole file or none, and the whole one as soon as
 * anybody was told.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { attempt } from '../../src/base/errors.ts';
import { authorityIn, certificateIn, keepCertificate } from '../../src/ci/filter/certificates.ts';
import { readListenConfig, writeListenConfig } from '../../src/ci/filter/doors.ts';
import { OneTimeFiles } from '../../src/ci/filter/one-time-files.ts';
import { installationKey } from '../../src/ci/filter/seal.ts';
import { createRunnerKeys } from '../../src/ci/gitea/keys.ts';
import { createJobFiles } from '../../src/ci/kit/job-files.ts';
import { Spool } from '../../src/ci/own-queue/spool.ts';
import { getPackage } from '../../src/images/agent-package.ts';
import { keepExit, keptExit } from '../../src/runtimes/docker/own-exit.ts';
import { layout, makeFolder, readIntent, stateOf } from '../../src/runtimes/process/folder.ts';
import { AgentFolders } from '../../src/runtimes/slurm/folder.ts';
import { syncFolder, writeWhole } from '../../src/system/files.ts';
import { eachCut } from '../support/power.ts';
import { scratch } from '../support/scratch.ts';

interface Fact {
  /** Returns what is told. */
  readonly act: (folder: string) => unknown;
  /** What the next start finds of it; null: nothing. */
  readonly find: (folder: string, told: string) => unknown;
}

const tar = (): Readable => Readable.from([Buffer.from('a tar')]);
const spool = (folder: string): Spool => new Spool(folder, () => false);
const jobFiles = (folder: string) => createJobFiles(join(folder, 'jobs'), z.object({ script: z.string() }));
const keys = (folder: string) => createRunnerKeys(join(folder, 'keys'));
const text = (path: string): string | null => attempt(() => readFileSync(path, 'utf8'));
const never = new AbortController().signal;
const pem = (what: string): Buffer => Buffer.from(`-----BEGIN ${what}-----\n${what}\n-----END ${what}-----\n`);
const agent = { type: 'azure', version: '1.0.0', from: 'https://192.0.2.1/a.tar.gz', sha256: null } as const;
const slurm = (folder: string) => new AgentFolders(folder, 'us');

const facts: Record<string, Fact> = {
  'a config, a token, or a unit of systemd': {
    act(folder) {
      writeWhole(join(folder, 'a'), 'text', { over: true, mode: 0o600 });
      return 'text';
    },
    find: (folder) => text(join(folder, 'a')),
  },
  'a key that seals what agents are given': {
    act: (folder) => String(installationKey(folder)),
    find: (folder) => (existsSync(join(folder, 'key')) ? String(installationKey(folder)) : null),
  },
  'an uploaded workspace': {
    act: (folder) => spool(folder).putWorkspace(tar(), 1_000, never),
    async find(folder, id) {
      const next = spool(folder);
      return next.hasWorkspace(id) && String(await buffer(next.openWorkspace(id))) === 'a tar' ? id : null;
    },
  },
  'files that were sent, and a workspace of them': {
    async act(folder) {
      const name = await spool(folder).keepFiles(tar(), 1_000, never);
      return spool(folder).joinWorkspace({ sent: [name], ranges: [[0, 0, 5]] }, 1_000, never);
    },
    async find(folder, id) {
      const next = spool(folder);
      return next.hasWorkspace(id) && String(await buffer(next.openWorkspace(id))) === 'a tar' ? id : null;
    },
  },
  'artifacts of a job': {
    async act(folder) {
      await spool(folder).putArtifacts('j', async (to) => {
        await pipeline(tar(), to);
        return true;
      });
      return 'a tar';
    },
    async find(folder) {
      const next = spool(folder);
      return next.hasArtifacts('j') ? String(await buffer(next.openArtifacts('j'))) : null;
    },
  },
  'a job of a service that gives it once': {
    async act(folder) {
      await jobFiles(folder).keep('1', { script: 'true' });
      return 'true';
    },
    find: (folder) => jobFiles(folder).all()[0]?.script ?? null,
  },
  'what the filter gives to an agent': {
    act: (folder) => new OneTimeFiles(folder).leave('a', 'a job'),
    find: async (folder, key) => (String(await new OneTimeFiles(folder).take('a', key)) === 'a job' ? key : null),
  },
  'the addresses at which agents call the filter': {
    act(folder) {
      writeListenConfig(folder, { version: '1', program: ['onejob'], port: 7_070, addresses: ['10.0.0.1'], secure: [] });
      return '10.0.0.1';
    },
    find: (folder) => readListenConfig(folder)?.addresses[0] ?? null,
  },
  'the certificate of the filter': {
    act(folder) {
      keepCertificate(join(folder, 'tls-10.0.0.1'), { key: pem('key'), cert: pem('certificate') });
      return String(pem('certificate'));
    },
    find: (folder) => certificateIn(folder, '10.0.0.1')?.cert.toString() ?? null,
  },
  'the package of an agent without a known checksum': {
    act: async (dir) => (await getPackage(agent, { dir, fetch: async () => new Response('body') }, () => {}, never)).sha256,
    async find(dir, sum) {
      const offline = { dir, fetch: async () => new Response(null, { status: 404 }) };
      const found = await getPackage(agent, offline, () => {}, never).catch(() => null);
      // Its name may be lost: then it is fetched again.
      return found?.sha256 ?? (readdirSync(dir).some((name) => name.endsWith('.gz')) ? 'damaged' : sum);
    },
  },
  'the key of a runner of Gitea': {
    act(folder) {
      keys(folder).keep('a', { uuid: 'u', token: 't' });
      return 't';
    },
    find: (folder) => keys(folder).of('a')?.token ?? null,
  },
  'how a sandbox in an engine of its own has ended': {
    act(folder) {
      keepExit(folder, { kind: 'code', code: 7 });
      return '7';
    },
    find(folder) {
      const exit = keptExit(folder);
      return exit?.kind === 'code' ? String(exit.code) : null;
    },
  },
  'what Slurm is asked to run': {
    async act(folder) {
      const about = { agent: 'a', pool: 'p', slot: 'p/1', fingerprint: 'f', sandbox: 'none', programs: [] } as const;
      await slurm(folder).make({ ...about, programs: [] }, {});
      return 'p/1';
    },
    find: (folder) => slurm(folder).intentOf('a')?.slot ?? null,
  },
};

test.each(Object.entries(facts))('%s', async (_, { act, find }) => {
  await eachCut(act, async ({ path, cut, isTold }, told) => {
    const found = await find(path, told as string);
    expect(isTold ? [told] : [told, null], cut).toContain(found);
  });
});

/** What a supervisor writes first. */
const proc = 'this boot\n1 (sh) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0\n';

// The kernel may have written its folder by itself meanwhile.
test.each([false, true])('a process sandbox of an earlier boot has ended, whatever is left of it (%s)', async (isWritten) => {
  const start = async (folder: string): Promise<void> => {
    const at = layout(folder);
    for (const path of [at.agents, at.exits]) mkdirSync(path);
    const about = { owner: 'us', agent: 'a', pool: 'p', slot: 'p/1', fingerprint: 'f', mode: 'plain', uid: null } as const;
    const path = await makeFolder(at, { ...about, files: join(at.agents, 'a'), cgroups: [], boot: 'this boot' });
    if (isWritten) for (const written of [join(path, 'spec.json'), path, at.agents, at.exits, folder]) syncFolder(written);
    writeFileSync(join(path, 'proc'), proc);
  };
  await eachCut(start, ({ path, cut }) => {
    const about = readIntent(layout(path), 'a');
    if (about === null || about === 'damaged') return;
    expect(stateOf(layout(path), about, 'next boot').kind, cut).toBe('exited');
  });
});

test('a certificate that an earlier version left without its content counts as missing, so that a new one is made', () => {
  using here = scratch();
  keepCertificate(join(here.path, 'ca'), { key: pem('key'), cert: pem('certificate') });
  expect(authorityIn(here.path)).not.toBeNull();
  for (const left of ['', '-----BEGIN certificate-----\n']) {
    writeFileSync(join(here.path, 'ca.pem'), left);
    expect(authorityIn(here.path)).toBeNull();
  }
});
