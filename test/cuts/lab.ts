/** A host with onejob installed as a service, whose scripts leave their evidence on this machine, where no cut can take it. */
import { chmodSync, copyFileSync, cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Host } from '../hosts/machine.ts';
import { packThisClone } from '../support/cloud-machine.ts';
import type { Look, Told } from './judge.ts';

/** Node of the release, and what is copied into the host. */
const node = '/root/onejob/node_modules/node/bin/node';
const inside = '/root/lab/test/cuts/inside';
const census = '/root/lab/test/support/census.ts';
/** s. Programs run at this machine's speed, but system calls are slow, and other work may be beside. */
const patience = 1_200;

export interface Lab {
  readonly host: Host;
  /** What scripts have written. */
  evidence(): string;
  /** Waits until nothing moves. */
  look(): Promise<Look>;
  /** Clients that hand in jobs until the power goes. */
  load(prefix: string, pools: readonly string[]): Load;
  journal(): Promise<string>;
  /** Stops onejob with everything that it holds; the last line of a census says what is left. */
  end(): Promise<{ readonly isClean: boolean; readonly said: string }>;
}

export interface Load {
  /** Resolves once the first job was accepted. */
  accepted(): Promise<unknown>;
  /** What the clients were told, once the power is off. */
  told(): Promise<Told[]>;
}

export interface LabOptions {
  readonly config: string;
  /** More for the host's `/mnt`: paths by name. */
  readonly files: Readonly<Record<string, string>>;
  /** Texts, by name below `/etc/onejob`. */
  readonly secrets: Readonly<Record<string, string>>;
  /** Of this machine's loopback, for the host. */
  readonly ports: readonly number[];
}

/** On a host that was not booted yet. Resolves once onejob is installed. */
export async function startLab(host: Host, options: LabOptions): Promise<Lab> {
  await prepare(host, options);
  return labOf(host);
}

async function prepare(host: Host, { config, files, secrets, ports }: LabOptions): Promise<void> {
  const { share } = host;
  {
    using archive = packThisClone();
    copyFileSync(archive.path, join(share, 'onejob.tgz'));
  }
  for (const folder of ['support', 'cuts'])
    cpSync(join(import.meta.dirname, '..', folder), join(share, 'test', folder), { recursive: true });
  for (const [name, path] of Object.entries(files)) copyFileSync(path, join(share, name));
  mkdirSync(join(share, 'etc'), { mode: 0o700 });
  for (const [name, text] of Object.entries({ ...secrets, 'config.yml': config }))
    writeFileSync(join(share, 'etc', name), text, { mode: 0o600 });
  // Jobs run as other users in each sandbox. That it is not on the host's disk has another reason, too: its syncs would bring
  // onejob's files there, and make up for a sync that onejob has forgotten.
  mkdirSync(join(share, 'evidence'));
  writeFileSync(join(share, 'evidence/log'), '');
  chmodSync(join(share, 'evidence'), 0o777);
  chmodSync(join(share, 'evidence/log'), 0o666);
  for (const port of ports) await host.lend(port);
  await host.boot();
  await host.sh('tar -C /root -xzf /mnt/onejob.tgz && mkdir /root/lab');
  // Not beside its own files: a folder with sources is a clone, which cannot be a service.
  await host.sh('cp -r /mnt/test /root/lab/ && ln -s /root/onejob/ts /root/lab/src && ln -s /root/onejob/node_modules /root/lab/');
  // No Engine syncs an image that it imports: after a power cut its programs would be empty.
  await host.sh(`docker import -c 'CMD ["bash"]' /mnt/image.tar debian:stable-slim && sync`);
  await host.sh(
    '/root/onejob/install.sh && cp -p /mnt/etc/* /etc/onejob/ && onejob config check && onejob service install && sync',
  );
}

function labOf(host: Host): Lab {
  return {
    host,
    evidence: () => readFileSync(join(host.share, 'evidence/log'), 'utf8'),
    look: async () => JSON.parse(await host.sh(`${node} ${inside}/look.ts ${patience}`)) as Look,
    load(prefix, pools) {
      const clients = host.start(`${node} ${inside}/load.ts ${prefix} ${pools.join(' ')}`);
      return {
        accepted: () => clients.says(/"accepted"/),
        async told() {
          // The last line may be half a line.
          const lines = (await clients.ended).stdout.split('\n').slice(0, -1);
          return lines.map((line) => JSON.parse(line) as Told);
        },
      };
    },
    journal: async () => (await host.start('journalctl --no-pager -o short-iso -u onejob -n 2000').ended).stdout,
    async end() {
      await host.sh('onejob down');
      const { code, stdout, stderr } = await host.start(`${node} ${census} --state-dir /var/lib/onejob`).ended;
      return { isClean: code === 0, said: (stdout + stderr).trim() };
    },
  };
}
