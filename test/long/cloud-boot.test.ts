/**
 * From the text for cloud-init to a host that joins, works, drains and goes: a real cloud-init and systemd boot it, the real server
 * takes the calls, and the real onejob runs the job.
 */

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createReadStream, existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type BootParts, cloudInit } from '../../src/machines/boot/cloud-init.ts';
import { linesOf } from '../../src/machines/join/line.ts';
import type { StageName } from '../../src/machines/join/protocol.ts';
import { JoinServer } from '../../src/machines/join/server.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { memoryHandler } from '../kit/machine-handler.ts';
import { cloudMachine, type Package, packThisClone } from '../support/cloud-machine.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { type Authority, createAuthority } from '../support/tls-front.ts';

const run = 'onejob-0123456789abcdef';
const config = 'pools: { build: { agents: 1, runtime: process } }\n';
const secret = 'the-secret-of-a-service';

let archive: Package;

beforeAll(() => {
  if (!lacks('nspawn')) archive = packThisClone();
}, 120_000);
afterAll(() => archive?.[Symbol.dispose]());

/** The files of a certificate for this machine. */
function identityOf(authority: Authority) {
  authority.issue('127.0.0.1');
  const folder = dirname(authority.file);
  return { cert: join(folder, 'cert.pem'), key: join(folder, 'key.pem') };
}

/** A controller that waits for one machine. `authority`: it has a certificate of that. */
async function controller(authority: Authority | null = null) {
  const listeners = new Set<() => void>();
  const world = memoryHandler(() => {
    for (const listener of listeners) listener();
  });
  const logged: string[] = [];
  const line = (event: string, fields: object = {}) => void logged.push(`${event} ${JSON.stringify(fields)}`);
  const server = new JoinServer({
    listen: { host: '127.0.0.1', port: 0 },
    tls: authority === null ? null : identityOf(authority),
    key: 'cloud.listen',
    handler: world.handler,
    clock: systemClock,
    log: { info: line, warn: line, error: line },
  });
  await server.open();
  world.serve(archive.path);
  const token = world.expect(run, {
    config,
    beat: 1,
    files: [{ path: '/run/onejob-cloud/secrets/ci', mode: '0600', content: Buffer.from(secret).toString('base64') }],
  });
  const until = (is: () => boolean) =>
    new Promise<void>((resolve) => {
      const look = () => {
        if (!is()) return;
        listeners.delete(look);
        resolve();
      };
      listeners.add(look);
      look();
    });
  const url = `http${authority === null ? '' : 's'}://127.0.0.1:${server.port}`;
  const parts = (more: Partial<BootParts> = {}): BootParts => ({
    run,
    url,
    token,
    cloud: 'none',
    guestEnds: true,
    away: 3600,
    ca: authority?.certificate ?? null,
    has: 'nothing',
    gpu: true,
    sandbox: true,
    lifetime: 3600,
    opengl: 'none',
    package: { url: `${url}/cloud/onejob.tgz?run=${run}`, sha256: archive.sha256 },
    ...more,
  });
  return {
    ...world,
    server,
    token,
    parts,
    until,
    logged,
    /** Resolves with its text once the machine has told the stage. */
    async stage(name: StageName): Promise<string> {
      await until(() => world.stages.some(({ stage }) => stage === name));
      return world.stages.find(({ stage }) => stage === name)?.text ?? '';
    },
    [Symbol.asyncDispose]: () => server.close(),
  };
}

describe.skipIf(lacks('nspawn', 'openssl'))('a new machine', () => {
  test('becomes a host: driver, reboot, Docker, toolkit, OpenGL, join, a job, and drained while another job ends', async () => {
    using folder = scratch();
    await using here = await controller(createAuthority(folder.path));
    const { stage, stages, beats, until, token, order, parts, thefts, logged } = here;
    // No metadata service is asked, and yet the rules of a cloud are made.
    const text = cloudInit(parts({ opengl: 'glx', setup: 'echo "from the config" >/var/setup\n' })).replace(
      "cloud='none'",
      "cloud='aws'",
    );
    await using machine = await cloudMachine(text);
    const { sh, start } = machine;
    const joined = stage('joined');
    await Promise.race([
      joined,
      stage('failed').then((said) => {
        throw new Error(`the machine failed:\n${said}`);
      }),
    ]);
    expect(stages.map((one) => one.stage)).toEqual(['booted', 'driver-ok', 'docker-ok', 'joined']);
    expect(await stage('driver-ok')).toBe('NVIDIA L4, 580.95.05, 23034 MiB\n');
    expect(await stage('docker-ok')).toBe('29.8.0\n');

    // cloud-init itself has no complaint, and the machine booted twice: its driver asked for it.
    expect(await sh('cloud-init schema --config-file /var/lib/cloud/instance/user-data.txt')).toContain('Valid cloud-config');
    expect(readFileSync(join(machine.root, 'var/boots'), 'utf8')).toBe('2\n');
    expect(await sh('cat /var/setup')).toBe('from the config\n');
    const calls = machine.calls();
    expect(calls).toMatch(/ubuntu-drivers install --gpgpu nvidia:580-server\napt-get .*install nvidia-utils-580-server\n/);
    expect(calls.match(/ubuntu-drivers install/g)).toHaveLength(1);
    expect(calls).toMatch(
      /nvidia-ctk runtime configure --runtime=docker\n(docker pull .*\n)docker run --rm --gpus all ubuntu:24.04 /,
    );
    expect(calls).toContain('iptables -w -I DOCKER-USER -d 169.254.169.254 -j REJECT\n');
    expect(calls).toContain('iptables -w -I OUTPUT -d 169.254.169.254 -m owner ! --uid-owner 0 -j REJECT\n');
    expect(calls).toContain('ip6tables -w -I FORWARD -d fd00:ec2::254 -j REJECT\n');
    expect(await sh('cat /etc/onejob-cloud/xorg.conf')).toContain('BusID "PCI:0@0:30:0"');
    expect(await sh('systemctl is-active onejob-x onejob onejob-attend onejob-end.timer')).toBe('active\n'.repeat(4));
    expect(await sh('systemctl is-enabled apt-daily.timer unattended-upgrades.service onejob', { code: 1 })).toMatch(
      /masked\nmasked\ndisabled\n/,
    );

    // Secrets are in memory and for root only; the token is in no argument, environment, or log.
    expect(await sh('findmnt -n -o FSTYPE -T /run/onejob-cloud/secrets/ci')).toBe('tmpfs\n');
    expect(await sh('stat -c "%a %U" /run/onejob-cloud /run/onejob-cloud/* | sort -u')).toBe('600 root\n700 root\n');
    expect(await sh('cat /run/onejob-cloud/secrets/ci')).toBe(secret);
    expect(await sh('ls /etc/onejob-cloud/auth 2>&1', { code: 2 })).toContain('No such file');
    const credential = (await sh('cat /run/onejob-cloud/credential')).trim();
    for (const one of [token, credential, secret]) {
      expect(machine.log() + calls + logged.join('\n')).not.toContain(one);
      await sh(`journalctl --no-pager | grep -Fe ${one}`, { code: 1 });
    }

    expect(await sh('onejob run --no-workspace -- echo hello')).toBe('hello\n');
    await sh('mkdir /var/flags');
    const wait = 'echo begun; until [ -e /flags/go ]; do sleep 0.1; done; exit 7';
    const job = start(`onejob run --no-workspace --volume /var/flags:/flags -- sh -c '${wait}'`);
    await job.says(/begun/);
    await until(() => beats.at(-1)?.busy === 1);
    expect(beats.at(-1)).toMatchObject({ run, busy: 1, agents: expect.any(Number), idleFor: 0, problem: null });
    order(run, 'drain');
    await expect.poll(() => sh('onejob status'), { timeout: 20_000 }).toMatch(/drain/);
    await sh('touch /var/flags/go');
    expect(await job.ended).toMatchObject({ code: 7 });
    await stage('drained');
    expect(await sh('systemctl is-active onejob', { code: 3 })).toBe('inactive\n');
    // Nothing of the daemon or its agents is left.
    expect(await sh('pgrep -f "onejob (up|filter)" || echo none')).toBe('none\n');
    expect(thefts).toEqual([]);
  }, 400_000);

  test('that has no way to its controller tells on its console how far it is, and who it is', async () => {
    await using here = await controller();
    const server = createServer((_, response) => createReadStream(archive.path).pipe(response)).listen(0, '127.0.0.1');
    await once(server, 'listening');
    try {
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/onejob.tgz`;
      const text = cloudInit(here.parts({ url: null, gpu: false, package: { url, sha256: archive.sha256 } }));
      // Nobody can read the console of systemd-nspawn. A file keeps only what the script wrote last.
      const file = text.replace('\nruncmd:\n', '\nruncmd:\n  - [ln, -sf, /var/log/console, /dev/console]\n');
      await using machine = await cloudMachine(file);
      const path = join(machine.root, 'var/log/console');
      const lines = () => linesOf(existsSync(path) ? readFileSync(path, 'utf8') : '', run);
      await expect.poll(() => lines().map(({ word }) => word), { timeout: 120_000 }).toEqual(['docker-ok', 'join']);
      const [stage, said] = lines();
      expect(stage?.text).toBe('29.8.0\n');
      expect(JSON.parse(said?.text ?? '')).toEqual({ recipient: expect.stringMatching(/^age1/), version: expect.any(String) });
      expect(readFileSync(path, 'utf8') + machine.log()).not.toContain(here.token);
      expect(await machine.sh('ls /etc/onejob-cloud/auth 2>&1', { code: 2 })).toContain('No such file');
      expect([here.stages, here.beats]).toEqual([[], []]);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  }, 400_000);

  test('that is shut down while a job runs counts that job as lost to the infrastructure', async () => {
    await using here = await controller();
    const { stage, stages, parts } = here;
    await using machine = await cloudMachine(cloudInit(parts({ gpu: false })));
    await stage('joined');
    const job = machine.start("onejob run --no-workspace -- sh -c 'echo begun; sleep 600'");
    await job.says(/begun/);
    void machine.start('systemctl poweroff');
    await stage('drained');
    await machine.gone;
    await job.kill();
    expect(stages.map((one) => one.stage)).toEqual(['booted', 'docker-ok', 'joined', 'drained']);
    const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
    const state = join(machine.root, 'var/lib/onejob');
    const jobs = execFileSync(program, ['jobs', '--all', '--json', '--state-dir', state], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    expect(JSON.parse(jobs)).toMatchObject([
      {
        state: 'done',
        verdict: { kind: 'infrastructure' },
        result: { reason: 'the cloud ended the machine while the job ran' },
      },
    ]);
  }, 400_000);

  test('that fails says why with the end of its log, and ends at the time of its own timer', async () => {
    await using here = await controller();
    const { stage, stages, parts } = here;
    const wrong = { url: parts().package.url, sha256: '0'.repeat(64) };
    await using machine = await cloudMachine(cloudInit(parts({ gpu: false, package: wrong })));
    const said = await stage('failed');
    expect(said).toMatch(/checksum differs\n$/);
    expect(said).toContain('onejob: booted');
    expect(stages.map((one) => one.stage)).toEqual(['booted', 'docker-ok', 'failed']);
    const { sh } = machine;
    expect(await sh('systemctl show -p TimersMonotonic onejob-end.timer')).toContain('OnBootUSec=1h');
    const sooner = '/etc/systemd/system/onejob-end.timer.d';
    await sh(`mkdir ${sooner} && printf '[Timer]\\nOnBootSec=\\nOnBootSec=1\\n' >${sooner}/sooner.conf && systemctl daemon-reload`);
    void machine.start('systemctl restart onejob-end.timer');
    await machine.gone;
  }, 400_000);
});
