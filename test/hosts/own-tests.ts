/** The repository's own tests of runtimes, run inside of hosts: with Engines, a systemd and a kernel of today. */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { quoted } from '../../src/base/quoted.ts';
import { lacks } from '../support/require.ts';
import { denyNamespaces, importImage, longEnough } from './begin.ts';
import { createHost, type Host, makeHost } from './machine.ts';
import { nameOf, type Setup, scriptOf, setups } from './setups.ts';

const root = join(import.meta.dirname, '..', '..');

const slow = 'a shell reads a script byte by byte, and each system call of this kernel is slow: it takes more than a minute';

/** Tests that say nothing on such a host, by the end of their name, each with the reason. */
const sayNothing: Readonly<Record<string, string>> = {
  'a frame of 1 MiB arrives whole': slow,
  'takes a script of 1 MiB': slow,
  'a script of a megabyte passes the gate': slow,
  'run compilers, interpreters and tools as ever': 'the disk has no xz',
};

interface Suite {
  readonly project: string;
  readonly files: readonly string[];
  /** The user that runs it; root by default. It lingers, so systemd keeps a manager for it. */
  readonly user?: string;
  /** Run by root before. */
  readonly before?: string;
}

const processes: Suite = {
  project: 'process',
  files: ['src/runtimes/process', 'src/runtimes/gate.test.ts', 'src/runtimes/choose.test.ts'],
};
const suites = {
  'the docker runtime': { project: 'process', files: ['src/runtimes/docker'] },
  // Words and habits of its store of images: Engine 29 has another than those before.
  'images on the Engine': { project: 'long-alone', files: ['test/long/image-builder.test.ts', 'test/long/images.test.ts'] },
  'the docker runtime with Podman': { project: 'long-alone', files: ['test/long/podman.contract.test.ts'] },
  'the process runtime as root': processes,
  'the process runtime as a user that lingers': { ...processes, user: 'own' },
  'the process runtime where AppArmor forbids namespaces to bubblewrap': {
    ...processes,
    user: 'own',
    before: `printf %s ${quoted(denyNamespaces)} >/etc/apparmor.d/bwrap && apparmor_parser --replace /etc/apparmor.d/bwrap`,
  },
} as const satisfies Record<string, Suite>;

interface Report {
  readonly numPassedTests: number;
  readonly testResults: readonly {
    readonly name: string;
    readonly message: string;
    readonly assertionResults: readonly { readonly fullName: string; readonly status: string }[];
  }[];
}

/** What went wrong, by name: a file that could not be run, or a test. */
function wrong({ testResults }: Report): string[] {
  return testResults.flatMap(({ name, message, assertionResults }) => {
    const failed = assertionResults.filter(({ status }) => status === 'failed').map(({ fullName }) => fullName);
    return failed.length === 0 && message !== '' ? [`${name}: ${message}`] : failed;
  });
}

export function runOwnTests(engine: Setup['engine'], ...names: readonly (keyof typeof suites)[]): void {
  const setup = setups.find((one) => one.engine === engine);
  if (setup === undefined) throw new Error(`no host has ${engine}`);
  describe.skipIf(lacks('host'))(`${nameOf(setup)}: the repository's own tests`, () => {
    let host: Host;

    beforeAll(async () => {
      await makeHost();
      host = createHost(undefined, scriptOf(setup));
      execFileSync('tar', ['-C', root, '-cf', join(host.share, 'clone.tar'), '--exclude=./.git', '--exclude=.cache', '.']);
      await host.boot();
      await host.sh('useradd --create-home own && loginctl enable-linger own && mkdir -p /var/tmp/clone');
      await host.sh('tar -C /var/tmp/clone -xf /mnt/clone.tar && chown -R own: /var/tmp/clone');
      await importImage(host, engine === 'Podman' ? 'podman' : 'docker');
    }, longEnough);

    afterAll(() => host?.[Symbol.asyncDispose]());

    test.each(names)(
      '%s',
      async (name) => {
        const { project, files, user, before = 'true' }: Suite = suites[name];
        await host.sh(before);
        const report = `/var/tmp/${names.indexOf(name)}.json`;
        // On a Debian of today /tmp is in memory, and has no devices.
        const env = 'env TMPDIR=/var/tmp CI= PATH=/var/tmp/clone/node_modules/node/bin:/usr/sbin:/usr/bin:/sbin:/bin';
        const mine = user === undefined ? '' : `HOME=/home/${user} XDG_RUNTIME_DIR=/run/user/$(id -u ${user})`;
        const words = `node node_modules/.bin/vitest run --project ${project} ${files.join(' ')} --reporter=default --reporter=json --outputFile.json=${report}`;
        const as = user === undefined ? '' : `runuser -u ${user} -- `;
        const { stdout, stderr } = await host.start(`cd /var/tmp/clone && ${as}${env} ${mine} ${words} 2>&1 </dev/null`).ended;
        const found = JSON.parse(await host.sh(`cat ${report}`)) as Report;
        const red = wrong(found).filter((one) => !Object.keys(sayNothing).some((name) => one.endsWith(name)));
        if (red.length > 0) console.log(stdout, stderr);
        expect(red).toEqual([]);
        expect(found.numPassedTests).toBeGreaterThan(10);
      },
      1_800_000,
    );
  });
}
