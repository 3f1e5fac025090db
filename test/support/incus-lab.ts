/**
 * A command `incus` for `examples/cloud-providers/incus-provider`. What it prints is from public sources of lxc/incus: the fields of an
 * instance from shared/api/instance.go, what a member of a cluster that is away looks like from cmd/incusd/instances_get.go, and words of
 * errors from its issue 3477.
 */
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Machines } from './cloud-standins.ts';

export const incusProvider = join(import.meta.dirname, '../../examples/cloud-providers/incus-provider');

/** A command `incus` that keeps its instances in a folder, and its words in `calls`. */
const incus = (state: string): string => `#!${process.execPath}
const { appendFileSync, existsSync, readFileSync, readdirSync, rmSync, writeFileSync } = require('node:fs');
const state = ${JSON.stringify(state)}, args = process.argv.slice(2);
appendFileSync(state + '/calls', JSON.stringify(args) + '\\n');
const fail = (text) => { process.stderr.write('Error: ' + text + '\\n'); process.exit(1); };
const of = (name) => state + '/vm-' + name.replace('lab:', '');
const empty = { architecture: '', config: null, devices: null, ephemeral: false, profiles: null, stateful: false, description: '',
  created_at: '0001-01-01T00:00:00Z', last_used_at: '0001-01-01T00:00:00Z', project: 'default', type: 'virtual-machine', backups: null, state: null, snapshots: null };
if (existsSync(state + '/away')) fail('Get "https://10.0.0.1:8443": connection refused');
switch (args[0] + ' ' + args[1]) {
  case 'profile list':
    console.log(JSON.stringify(['default', 'gpu-large'].map((name) => ({ name, description: '', config: {}, devices: {} }))));
    break;
  case 'list lab:':
    console.log(JSON.stringify([
      { ...empty, name: 'somebodys', status: 'Running', status_code: 103, location: 'none', config: { 'user.onejob-owner': 'lab-1' } },
      ...readdirSync(state).filter((file) => file.startsWith('vm-')).map((file) => JSON.parse(readFileSync(state + '/' + file))),
    ]));
    break;
  case 'delete --force':
    rmSync(of(args[2]));
    break;
  case 'console ' + args[1]:
    if (!existsSync(of(args[1]))) fail('Instance not found');
    console.log('Console log:\\n\\n[    1.0] hello\\nonejob acceptance ' + args[1].replace('lab:', '') + ' speaks');
    break;
  default: {
    if (args[0] !== 'launch' || args[2] === undefined) fail('unknown command');
    if (args[1] === 'images:nothing') fail("Failed instance creation: Failed getting remote image info: Failed getting image: The requested image couldn't be found");
    const { config } = JSON.parse(readFileSync(0, 'utf8'));
    const name = args[2].replace('lab:', '');
    const isFull = existsSync(state + '/full');
    const instance = { ...empty, architecture: 'x86_64', name, config, ephemeral: true, profiles: ['default', 'gpu-large'], location: 'node1' };
    writeFileSync(of(name), JSON.stringify({ ...instance, ...(isFull ? { status: 'Stopped', status_code: 102 } : { status: 'Running', status_code: 103 }) }));
    if (existsSync(state + '/lost')) { writeFileSync(state + '/away', ''); fail('Failed instance creation: websocket: close 1006 (abnormal closure)'); }
    if (isFull) fail('Failed to start device "gpu": it is in use');
  }
}
`;

/** `home`: its state. `path`: a `PATH` with the command on it. */
export function incusLab(folder: string) {
  const home = mkdtempSync(join(folder, 'lab-'));
  mkdirSync(join(home, 'bin'));
  writeFileSync(join(home, 'bin/incus'), incus(home));
  chmodSync(join(home, 'bin/incus'), 0o755);
  return { home, path: `${home}/bin:${process.env.PATH}` };
}

/** Names of the instances that exist. */
export const instancesOf = (home: string): string[] =>
  readdirSync(home).flatMap((file) => (file.startsWith('vm-') ? [file.slice('vm-'.length)] : []));

/** Boots and ends machines as instances come and go. Stops with the disposal. */
export function playInstances(home: string, machines: Machines): Disposable {
  const known = new Set<string>();
  const timer = setInterval(() => {
    const names = instancesOf(home);
    for (const name of names)
      if (!known.has(name))
        machines.boot(name, JSON.parse(readFileSync(join(home, `vm-${name}`), 'utf8')).config['cloud-init.user-data']);
    for (const name of known) if (!names.includes(name)) machines.end(name);
    known.clear();
    for (const name of names) known.add(name);
  }, 100);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
