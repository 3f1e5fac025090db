/** The role of Ansible, with the real one, on machines with systemd and Python. */
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeDeb } from '../../scripts/deb.ts';
import { quoted } from '../../src/base/quoted.ts';
import { ansiblePlaybook } from '../support/ansible.ts';
import { type Child, startChild } from '../support/child.ts';
import { type Guest, guest } from '../support/guest.ts';
import { lacks } from '../support/require.ts';

const root = join(import.meta.dirname, '..', '..');
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };

/** A machine like that of a cloud has Python, and here nothing else of a cloud. */
const machine = (): Promise<Guest> => guest({ cloud: (files) => writeFileSync(join(files, 'etc/cloud/cloud-init.disabled'), '') });

describe.skipIf(lacks('nspawn', 'ansible'))('the role of Ansible', () => {
  let work: string;
  const at = (...path: string[]): string => join(work, ...path);

  beforeAll(() => {
    work = mkdtempSync(join(tmpdir(), 'onejob-ansible-'));
    const archive = ['--out', at('release'), '--arch', process.arch];
    execFileSync(process.execPath, [join(root, 'scripts/release.ts'), ...archive], { cwd: root, stdio: 'ignore' });
    const name = `onejob-${version}-linux-${process.arch}`;
    execFileSync('tar', ['-C', work, '-xzf', at('release', `${name}.tar.gz`)]);
    const about = at(name, 'package.json');
    writeFileSync(about, readFileSync(about, 'utf8').replace(`"version": "${version}"`, '"version": "9.0.0"'));
    makeDeb(at(name), at('release'), '0');
    cpSync(join(root, 'deploy/ansible'), work, { recursive: true });
    mkdirSync(at('hosts'));
    // What Ansible takes for ssh: its last word is the command.
    const ssh = `#!/bin/sh
for word; do last=$word; case $word in gpu[12]) host=$word ;; esac; done
exec nsenter -t "$(cat ${work}/$host.pid)" -m -p -u -i -n -r -w -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -c "$last"
`;
    writeFileSync(at('ssh'), ssh, { mode: 0o755 });
  }, 600_000);
  afterAll(() => rmSync(work, { recursive: true, force: true }));

  const package_ = (of: string): string =>
    at('release', readdirSync(at('release')).find((name) => name.startsWith(`onejob_${of}_`)) ?? '');

  function play(package_: string): Child {
    const hosts = { gpu1: {}, gpu2: {} };
    const vars = {
      onejob_package: package_,
      onejob_config: `${work}/hosts/{{ inventory_hostname }}.yml`,
      onejob_secrets: { 'a.token': 's3cret-of-ansible\n' },
      onejob_users: ['nobody'],
      ansible_ssh_executable: at('ssh'),
      ansible_ssh_transfer_method: 'piped',
      ansible_become: false,
    };
    writeFileSync(at('inventory.json'), JSON.stringify({ onejob: { hosts, vars } }));
    const env = { ...process.env, HOME: work, ANSIBLE_NOCOLOR: '1', ANSIBLE_ROLES_PATH: at('roles'), LC_ALL: 'C.UTF-8' };
    // Its workers would wait for what may come on its input.
    const command = [ansiblePlaybook, '-i', at('inventory.json'), at('site.yml')].map(quoted).join(' ');
    return startChild('sh', ['-c', `exec ${command} </dev/null`], { cwd: work, env });
  }

  test('installs, upgrades under a job, applies what changed, and stops at the first host that is not well', async () => {
    await using one = await machine();
    await using two = await machine();
    for (const [name, { pid }] of Object.entries({ gpu1: one, gpu2: two })) writeFileSync(at(`${name}.pid`), String(pid));
    const configs = (gpu1: string, gpu2 = gpu1): void => {
      writeFileSync(at('hosts/gpu1.yml'), `pools: { build: ${gpu1} }\n`);
      writeFileSync(at('hosts/gpu2.yml'), `pools: { build: ${gpu2} }\n`);
    };
    configs('{ agents: 1, runtime: process }');
    const first = await play(package_(version)).ended;
    expect(first, first.stdout).toMatchObject({ code: 0 });
    expect(first.stdout).not.toContain('s3cret-of-ansible');
    for (const { sh } of [one, two]) {
      expect(await sh('stat -c "%a %U" /etc/onejob/a.token; id -nG nobody')).toBe('600 root\nnogroup onejob\n');
      expect(await sh('onejob run --no-workspace -- echo hello')).toBe('hello\n');
    }
    const again = await play(package_(version)).ended;
    expect(again.stdout).toMatch(/gpu2 +: ok=\d+ +changed=0 +unreachable=0 +failed=0/);

    const job = one.start(`onejob run --no-workspace -- sh -c 'echo begun; sleep 45; exit 7'`);
    await job.says(/begun/);
    configs('{ agents: 2, runtime: process }');
    const upgraded = await play(package_('9.0.0')).ended;
    expect(upgraded, upgraded.stdout).toMatchObject({ code: 0 });
    expect(upgraded.stdout).toContain('pool build: 2 slots instead of 1');
    expect(await one.sh('onejob --version')).toBe('9.0.0\n');
    expect(await two.sh('onejob status --json')).toContain('"version":"9.0.0"');
    expect(await job.ended).toMatchObject({ code: 7 });

    // A rollout that was stopped after it had written the config is finished by the next.
    const stopped = '{ agents: 1, runtime: process }';
    await one.sh(`echo 'pools: { build: ${stopped} }' >/etc/onejob/config.yml`);
    configs(stopped, '{ agents: 2, runtime: process }');
    const finished = await play(package_('9.0.0')).ended;
    expect(finished, finished.stdout).toMatchObject({ code: 0 });
    expect(await one.sh('onejob config apply --dry-run')).toContain('Nothing to apply');

    configs('{ agents: none }', '{ agents: 3, runtime: process }');
    const refused = await play(package_('9.0.0')).ended;
    expect(refused.code).not.toBe(0);
    expect(refused.stdout).toContain('pools.build.agents');
    expect(await one.sh('cat /etc/onejob/config.yml')).toContain('agents: 1');
    expect(await two.sh('cat /etc/onejob/config.yml')).toContain('agents: 2');
  }, 1_500_000);
});
