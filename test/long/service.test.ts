/** A release on a machine with systemd and without Node: from `install.sh` to `service uninstall`, with jobs that continue. */
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeDeb } from '../../scripts/deb.ts';
import type { Child } from '../support/child.ts';
import { dashboard } from '../support/dashboard-files.ts';
import { type Guest, guest } from '../support/guest.ts';
import { installedUnder } from '../support/packages.ts';
import { lacks } from '../support/require.ts';

const root = join(import.meta.dirname, '..', '..');
const config = 'pools: { build: { agents: 2, runtime: process } }\n';
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
const arch = process.arch;
const nameOf = (of: string): string => `onejob-${of}-linux-${arch}`;

let work: string;

/** A release as another version, changed by `change`, with its checksum. */
function variant(of: string, change: (folder: string) => void = () => {}): void {
  const folder = join(work, nameOf(of));
  cpSync(join(work, nameOf(version)), folder, { recursive: true });
  const about = join(folder, 'package.json');
  writeFileSync(about, readFileSync(about, 'utf8').replace(`"version": "${version}"`, `"version": "${of}"`));
  change(folder);
  execFileSync('tar', ['-C', work, '-czf', join(work, 'release', `${nameOf(of)}.tar.gz`), nameOf(of)]);
  makeDeb(folder, join(work, 'release'), '0');
}

beforeAll(() => {
  if (lacks('nspawn')) return;
  work = mkdtempSync(join(tmpdir(), 'onejob-service-'));
  const out = join(work, 'release');
  execFileSync(process.execPath, [join(root, 'scripts/release.ts'), '--out', out, '--arch', arch], { cwd: root, stdio: 'ignore' });
  execFileSync('sha256sum', ['--check', '--quiet', 'SHA256SUMS'], { cwd: out });
  execFileSync('tar', ['-C', work, '-xzf', join(out, `${nameOf(version)}.tar.gz`)]);
  variant('9.0.0');
  variant('9.0.1', (folder) => writeFileSync(join(folder, 'dist/main.js'), "throw new Error('made to fail')\n"));
  execFileSync('sh', ['-c', 'sha256sum *.tar.gz *.json >SHA256SUMS'], { cwd: out });
}, 600_000);

afterAll(() => rmSync(work, { recursive: true, force: true }));

/** A machine with the archives in /root, and version `version` installed, for root. */
async function machine(): Promise<Guest> {
  const there = await guest();
  cpSync(join(work, 'release'), join(there.root, 'root'), { recursive: true });
  await there.sh(`tar -xzf ${nameOf(version)}.tar.gz && ${nameOf(version)}/install.sh`);
  mkdirSync(join(there.root, 'etc/onejob'), { recursive: true });
  writeFileSync(join(there.root, 'etc/onejob/config.yml'), config);
  return there;
}

/** A job that ends with 7 once it is let go. Its own /tmp is not the guest's. */
async function hold({ start, sh }: Guest): Promise<Child> {
  await sh('mkdir -p /var/flags');
  const wait = 'echo begun; until [ -e /flags/go ]; do sleep 0.1; done; echo over; exit 7';
  const job = start(`onejob run --no-workspace --volume /var/flags:/flags -- sh -c '${wait}'`);
  await job.says(/begun/);
  return job;
}

async function letGo({ sh }: Guest, job: Child): Promise<void> {
  await sh('touch /var/flags/go');
  expect(await job.ended).toMatchObject({ code: 7, stdout: 'begun\nover\n', stderr: expect.not.stringContaining('lost') });
}

const status = async ({ sh }: Guest, flags = ''): Promise<Record<string, unknown>> =>
  JSON.parse(await sh(`onejob service status --json ${flags}`));

describe.skipIf(lacks('nspawn'))('an archive of a release', () => {
  const here = (...path: string[]): string => join(work, nameOf(version), ...path);

  test('names everything in its bill of materials: what is installed, what dashboard and documentation were made from, and its Node', () => {
    const { components } = JSON.parse(readFileSync(here('sbom.cdx.json'), 'utf8')) as {
      components: { name: string; version: string; purl: string }[];
    };
    const listed = components.map(({ name, version: of }) => `${name} ${of}`);
    const installed = installedUnder(here('node_modules'), ['node']).map(({ name, version: of }) => `${name} ${of}`);
    expect(installed.length).toBeGreaterThan(20);
    const bundled = ['dist/web/bundled.json', 'dist/docs/bundled.json'].flatMap(
      (file) => JSON.parse(readFileSync(here(file), 'utf8')) as { name: string; version: string }[],
    );
    expect(bundled.map(({ name }) => name)).toEqual(expect.arrayContaining(['react', 'react-dom', 'uplot', 'minisearch']));
    const node = components.filter(({ name }) => name === 'node').map(({ version: of }) => `node ${of}`);
    expect(node).toHaveLength(1);
    expect(listed.toSorted()).toEqual(
      [...new Set([...installed, ...bundled.map(({ name, version: of }) => `${name} ${of}`), ...node])].toSorted(),
    );
  });

  test('has what docs say that it has, and no link to where it was made', () => {
    const documented = ['deploy/grafana/onejob.json', 'deploy/prometheus/rules.yml', 'docs/openapi.json', 'LICENSE'];
    for (const file of [...documented, 'tools/import-compose/dist/index.js']) expect(existsSync(here(file)), file).toBe(true);
    const files = readdirSync(here(), { recursive: true, withFileTypes: true });
    expect(files.filter((file) => file.isSymbolicLink()).map(({ name }) => name)).toEqual([]);
  });
});

describe.skipIf(lacks('nspawn'))('a release, on a machine with systemd and without Node', () => {
  test('is installed: the command, its man page and completions, the group, the unit, a daemon that is ready', async () => {
    await using there = await machine();
    const { sh } = there;
    await sh('node --version', { code: 127 });
    expect(await sh('onejob --version')).toBe(`${version}\n`);
    expect(await sh('onejob import compose /nowhere 2>&1 || true')).toContain('There is no folder /nowhere');
    expect(await sh('stat -c "%a %U %G" /etc/onejob')).toBe('750 root onejob\n');
    const manual = await sh('man onejob | cat');
    const commands = 'history wait top shell unhold dashboard notify';
    for (const command of [...commands.split(' '), 'service install', 'status --all', 'run --array', 'hosts.yml'])
      expect(manual).toContain(command);
    const bash = '. /usr/local/share/bash-completion/completions/onejob; complete -p onejob; COMP_WORDS=(onejob "") COMP_CWORD=1';
    const offered = await sh(`bash -c '${bash}; _onejob; echo "\${COMPREPLY[@]}"'`);
    expect(offered.split(/\s+/)).toEqual(expect.arrayContaining(['_onejob', ...commands.split(' ')]));
    await sh('grep -q unhold /usr/local/share/zsh/site-functions/_onejob /usr/local/share/fish/vendor_completions.d/onejob.fish');
    expect(await sh('onejob service status', { code: 1 })).toContain('not installed');
    // The image has none of the tools that tell about cards, and the config goes elsewhere.
    expect(await sh('onejob init own-queue --config /root/first.yml')).toContain(
      'onejob service install --config /root/first.yml    run the daemon as a service',
    );
    expect(await sh('onejob service install')).toContain('started the daemon');
    await sh('systemd-analyze verify /etc/systemd/system/onejob.service');
    // 10 is a unit without any limit. Devices, namespaces and users are what jobs need.
    await sh('systemd-analyze security --threshold=90 onejob >/dev/null');
    expect(await status(there)).toMatchObject({ active: true, enabled: true, restarts: 0, version, previous: null });
    expect(await sh('onejob run --no-workspace -- echo hello')).toBe('hello\n');
    const { origin } = new URL(JSON.parse(await sh('onejob dashboard --json')).url);
    cpSync(join(root, 'test/support/dashboard-files.ts'), join(there.root, 'root/dashboard-files.ts'));
    const node = '/opt/onejob/current/node_modules/node/bin/node';
    expect(JSON.parse(await sh(`${node} dashboard-files.ts ${origin}`))).toEqual(dashboard);
    writeFileSync(join(there.root, 'etc/onejob/config.yml'), config.replace('agents: 2', 'agents: 3'));
    await sh('systemctl reload onejob');
    expect(await sh('onejob status')).toContain('0/3 busy');
    expect(await sh('onejob doctor --json', { code: 0 })).not.toContain('"level":"error"');
    // Again, over what is there.
    await sh(`${nameOf(version)}/install.sh && onejob service install`);
    expect(await status(there)).toMatchObject({ active: true, version, previous: null });
  }, 120_000);

  test('a daemon that is killed, hangs, or is restarted disturbs no job', async () => {
    await using there = await machine();
    const { sh } = there;
    mkdirSync(join(there.root, 'etc/systemd/system/onejob.service.d'), { recursive: true });
    writeFileSync(join(there.root, 'etc/systemd/system/onejob.service.d/fast.conf'), '[Service]\nRestartSec=0\nWatchdogSec=15s\n');
    await sh('onejob service install');
    const job = await hold(there);
    const first = (await status(there)).pid;
    await sh('systemctl kill --kill-whom=main --signal=KILL onejob');
    await expect
      .poll(async () => JSON.parse(await sh('onejob service status --json || true')).restarts, { timeout: 30_000 })
      .toBe(1);
    await expect.poll(async () => (await sh('onejob service status >/dev/null; echo $?')).trim(), { timeout: 30_000 }).toBe('0');
    const second = (await status(there)).pid;
    expect(second).not.toBe(first);
    await sh('systemctl kill --kill-whom=main --signal=STOP onejob');
    await expect
      .poll(async () => JSON.parse(await sh('onejob service status --json || true')).restarts, { timeout: 60_000 })
      .toBe(2);
    await expect.poll(async () => (await sh('onejob service status >/dev/null; echo $?')).trim(), { timeout: 30_000 }).toBe('0');
    await sh('systemctl restart onejob');
    await letGo(there, job);
    // A daemon that was told to end stays down.
    await sh('onejob down');
    expect(JSON.parse(await sh('onejob service status --json', { code: 1 }))).toMatchObject({ active: false });
  }, 180_000);

  test('is upgraded and rolled back under a job; a release that does not start, or is not the right one, changes nothing', async () => {
    await using there = await machine();
    const { sh } = there;
    await sh('onejob service install');
    expect(await sh('onejob service rollback', { code: 1 })).toContain('no previous version');
    const job = await hold(there);
    expect(await sh(`onejob service upgrade ${nameOf('9.0.0')}.tar.gz`)).toBe('The daemon runs version 9.0.0 now.\n');
    expect(await status(there)).toMatchObject({ active: true, version: '9.0.0', previous: version });
    expect(await sh(`onejob service upgrade ${nameOf('9.0.1')}.tar.gz`, { code: 1 })).toMatch(
      /Version 9\.0\.1 did not start, so the daemon runs 9\.0\.0 again.*made to fail/s,
    );
    expect(await status(there)).toMatchObject({ active: true, version: '9.0.0' });
    await sh(`echo more >>${nameOf('9.0.1')}.tar.gz`);
    expect(await sh(`onejob service upgrade ${nameOf('9.0.1')}.tar.gz`, { code: 1 })).toContain('SHA256SUMS');
    await sh('mkdir apart; echo nothing >apart/x.tar.gz');
    expect(await sh('onejob service upgrade apart/x.tar.gz', { code: 1 })).toContain('is not a release of onejob');
    expect(await sh('onejob service upgrade missing.tar.gz', { code: 1 })).toContain('Cannot read');
    expect(await sh('ls -A /opt/onejob | grep "^[.]" | grep -vx -e .lock -e .links || true')).toBe('');
    await sh(`onejob service upgrade ${nameOf(version)}.tar.gz`);
    await sh('onejob service rollback');
    expect(await status(there)).toMatchObject({ active: true, version: '9.0.0', previous: version });
    await letGo(there, job);
  }, 180_000);

  test('says in one sentence that the state is of a newer version, and rolls back to the version that can read it', async () => {
    await using there = await machine();
    const { sh } = there;
    await sh('onejob service install');
    await sh(`onejob service upgrade ${nameOf('9.0.0')}.tar.gz`);
    const store = "new (require('node:sqlite').DatabaseSync)(process.argv[1])";
    const node = `/opt/onejob/current/node_modules/node/bin/node -e "${store}.exec('PRAGMA user_version = 1000000')" /var/lib/onejob/onejob.db`;
    await sh(`onejob down && ${node}`);
    const said = await sh('onejob service rollback', { code: 1 });
    expect(said).toMatch(/newer/);
  }, 120_000);

  test('is uninstalled: the unit is gone, and a running job continues', async () => {
    await using there = await machine();
    const { sh } = there;
    await sh('onejob service install');
    const job = await hold(there);
    expect(await sh('onejob service uninstall')).toContain('Running jobs continue');
    await sh('systemctl cat onejob', { code: 1 });
    expect(await sh('onejob service uninstall', { code: 1 })).toContain('There is no service to remove');
    expect(job.running).toBe(true);
    const again = there.start('onejob up');
    await again.says(/onejob is up/);
    await letGo(there, job);
    await sh('onejob down');
    await again.ended;
  }, 120_000);

  test('is a package for Debian: upgraded under a job, taken back where it does not start, removed without its state', async () => {
    await using there = await guest();
    const { sh } = there;
    cpSync(join(work, 'release'), join(there.root, 'root'), { recursive: true });
    const deb = (of: string) => `dpkg -i onejob_${of}_*.deb 2>&1`;
    expect(await sh(deb(version))).toContain('Next: sudo onejob init own-queue');
    expect(await sh('readlink -f /usr/bin/onejob; stat -c "%a %U %G" /etc/onejob')).toBe(
      `/opt/onejob/${version}/bin/onejob\n750 root onejob\n`,
    );
    expect(await sh('man -w onejob')).toContain('/man/man1/onejob.1');
    writeFileSync(join(there.root, 'etc/onejob/config.yml'), config);
    await sh('onejob service install');
    const job = await hold(there);
    expect(await sh(deb('9.0.0'))).toContain('The daemon runs version 9.0.0 now.');
    expect(await status(there)).toMatchObject({ active: true, version: '9.0.0', previous: version });
    expect(await sh(deb('9.0.1'), { code: 1 })).toMatch(/made to fail.*The daemon runs version 9\.0\.0 again/s);
    expect(await status(there)).toMatchObject({ active: true, version: '9.0.0' });
    // A version shares its files with the package, and keeps them when that has others.
    expect(await sh('onejob --version && dpkg --verify onejob')).toBe('9.0.0\n');
    expect(job.running).toBe(true);
    await sh('touch /var/flags/go && onejob wait --all 2>/dev/null || true');
    expect(await job.ended).toMatchObject({ code: 7 });
    // Neither a link that is gone nor another program of that name is in its way.
    await sh(`rm /usr/bin/onejob && printf '#!/bin/sh\\nexit 9\\n' >/usr/local/bin/onejob && chmod 755 /usr/local/bin/onejob`);
    expect(await sh('dpkg --remove onejob 2>&1')).toContain('Stopped the daemon');
    expect(
      await sh('ls -d /opt/onejob /usr/bin/onejob /usr/lib/onejob /etc/systemd/system/onejob.service 2>&1 || true'),
    ).not.toMatch(/^\//m);
    expect(await sh('dpkg --purge onejob; ls /etc/onejob /var/lib/onejob')).toMatch(/Kept: .*config\.yml.*onejob\.db/s);
  }, 180_000);

  test('is installed by a user for themselves, and stays when they log out', async () => {
    await using there = await guest();
    const { sh } = there;
    await sh('useradd --create-home --shell /bin/sh ci && loginctl enable-linger ci');
    cpSync(join(work, 'release'), join(there.root, 'home/ci'), { recursive: true });
    const mine = { user: 'ci' };
    await sh(`tar -xzf ${nameOf(version)}.tar.gz && ${nameOf(version)}/install.sh --user`, mine);
    await sh('mkdir -p .config/onejob', mine);
    writeFileSync(join(there.root, 'home/ci/.config/onejob/config.yml'), config);
    const onejob = '.local/bin/onejob';
    expect(await sh(`${onejob} service install`, { ...mine, code: 1 })).toContain('sudo onejob service install');
    expect(await sh(`${onejob} service install --user 2>&1`, mine)).not.toContain('when you log out');
    await sh('systemd-analyze --user verify .config/systemd/user/onejob.service', mine);
    expect(JSON.parse(await sh(`${onejob} service status --user --json`, mine))).toMatchObject({ active: true, enabled: true });
    expect(await sh(`${onejob} run --no-workspace -- echo hello`, mine)).toBe('hello\n');
    await sh(`${onejob} service upgrade --user ${nameOf('9.0.0')}.tar.gz`, mine);
    expect(JSON.parse(await sh(`${onejob} service status --user --json`, mine))).toMatchObject({ version: '9.0.0' });
    await sh(`${onejob} service uninstall --user`, mine);
  }, 120_000);
});
