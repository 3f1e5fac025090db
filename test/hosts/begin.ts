/** What the tests on hosts have in common: a host with this clone's archive, and with the image that jobs run in. */
import { copyFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packThisClone } from '../support/cloud-machine.ts';
import { createHost, type Host, makeHost } from './machine.ts';

/** Its commands take seconds: programs run at this machine's speed, but system calls are slow. */
export const patient = { timeout: 240_000, interval: 500 };

/** Of a test file's `beforeAll`: what a host is made of is made there if it is missing. */
export const longEnough = 3_600_000;

/** A profile of AppArmor that does to bubblewrap what Ubuntu's kernel does to programs without a profile. */
export const denyNamespaces = `abi <abi/4.0>,
profile bwrap /usr/bin/bwrap flags=(attach_disconnected) {
  allow all,
  deny userns,
}
`;

/** A booted host with the archive unpacked in `/root/onejob`. `setup`: as for `createHost`; `files`: by their names in its `/mnt`. */
export async function beginHost(files: Readonly<Record<string, string>>, setup?: string): Promise<Host> {
  await makeHost();
  await using parts = new AsyncDisposableStack();
  const host = parts.use(createHost(undefined, setup));
  using archive = packThisClone();
  copyFileSync(archive.path, join(host.share, 'onejob.tgz'));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(host.share, name), text);
  await host.boot();
  await host.sh('tar -C /root -xzf /mnt/onejob.tgz && install -d -m 777 /srv/evidence');
  parts.move();
  return host;
}

/** No Engine syncs an image that it imports: after a power cut its programs would be empty. */
export const importImage = (host: Host, engine: 'docker' | 'podman'): Promise<string> =>
  host.sh(`${engine} import /mnt/image.tar debian:stable-slim && sync`);

/** What is said of a red test: the end of the service's journal, and of the console. */
export async function tell(host: Host): Promise<void> {
  console.log(`${(await host.start('journalctl --no-pager -o cat -u onejob -n 20').ended).stdout}\n${host.look()}`);
}
