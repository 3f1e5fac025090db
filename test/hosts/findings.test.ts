/** What was once found on hosts of today: what onejob says of rights that a host withholds, and of two Engines and two firewalls on one. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { quoted } from '../../src/base/quoted.ts';
import { lacks } from '../support/require.ts';
import { beginHost, denyNamespaces, importImage, longEnough } from './begin.ts';
import type { Host } from './machine.ts';

interface Line {
  readonly message: string;
  readonly hint?: string;
}

const pools = 'pools: { net: { agents: 1, image: "debian:stable-slim", network: internet } }\n';

describe.skipIf(lacks('host'))('a host of today', { timeout: 300_000 }, () => {
  let host: Host;

  beforeAll(async () => {
    host = await beginHost({ bwrap: denyNamespaces, 'net.yml': pools });
    await host.sh('/root/onejob/install.sh');
    for (const engine of ['docker', 'podman'] as const) await importImage(host, engine);
    await host.sh('useradd --uid 4000 --create-home own && loginctl enable-linger own');
  }, longEnough);

  afterAll(() => host?.[Symbol.asyncDispose]());

  const doctor = async (before: string): Promise<Line[]> =>
    JSON.parse((await host.start(`${before} onejob doctor --json`).ended).stdout) as Line[];
  const internet = async (before: string): Promise<string[]> =>
    (await doctor(before)).map(({ message }) => message).filter((message) => /network: internet/.test(message));
  const own = 'runuser -u own -- env -C /home/own HOME=/home/own XDG_RUNTIME_DIR=/run/user/4000 ';

  test('an AppArmor profile that forbids namespaces to bubblewrap is not an installation that is missing', async () => {
    await host.sh('cp /mnt/bwrap /etc/apparmor.d/ && apparmor_parser --replace /etc/apparmor.d/bwrap');
    try {
      const said = (await doctor(own))
        .map(({ message, hint }) => `${message} ${hint ?? ''}`)
        .filter((line) => /bubblewrap/i.test(line));
      expect(said.join('\n')).toMatch(/AppArmor/);
      expect(said.join('\n')).not.toMatch(/apt-get install bubblewrap/);
      expect(said.join('\n')).not.toMatch(/[Dd]enied [A-Z]/);
    } finally {
      await host.sh('apparmor_parser --remove /etc/apparmor.d/bwrap && rm /etc/apparmor.d/bwrap');
    }
  });

  test('a user who lingers already is not told to turn that on', async () => {
    const { stdout, stderr } = await host.start(
      `${own} sh -c ${quoted('tar -xzf /mnt/onejob.tgz && onejob/install.sh --user && .local/bin/onejob service install --user')}`,
    ).ended;
    expect(stdout + stderr).toContain('started the daemon');
    expect(stdout + stderr).not.toContain('log out');
    await host.sh(`${own} sh -c ${quoted('.local/bin/onejob down --end; .local/bin/onejob service uninstall --user')}`);
  });

  test('Podman beside Docker has no network "internet", although Docker keeps rules', async () => {
    const podman = host.start('podman system service --time=0 unix:///run/beside.sock');
    await host.sh('until [ -S /run/beside.sock ]; do sleep 0.2; done; cp /mnt/net.yml /etc/onejob/config.yml');
    expect(await internet('')).toEqual(['Pools may use network: internet.']);
    expect(await internet('DOCKER_HOST=unix:///run/beside.sock')).toEqual([
      expect.stringMatching(/^Pools cannot use network: internet, because Podman keeps its rules elsewhere/),
    ]);
    await host.sh('pkill -f "[p]odman system service"');
    await podman.ended;
  });

  test('an Engine that has changed to nftables guards the network "internet", or does not have it', async () => {
    const call = `onejob run --no-workspace --pool net -- bash -c 'exec 3<>/dev/tcp/10.0.2.15/22 && echo reached'`;
    await host.sh(
      `mkdir -p /etc/docker && echo '{"firewall-backend":"nftables"}' >/etc/docker/daemon.json && sysctl -q net.ipv4.ip_forward=1 && systemctl restart docker`,
    );
    const switched = await host.start(`timeout 60 ${call}`).ended;
    expect(switched.stdout).toBe('');
    expect(switched.code).not.toBe(0);
    await host.sh('onejob down --end || true; echo net.ipv4.ip_forward=1 >/etc/sysctl.d/here.conf');
    await host.off();
    await host.boot();
    expect(await internet('')).toEqual([expect.stringMatching(/^Pools cannot use network: internet, because .*DOCKER-USER/)]);
  });
});
