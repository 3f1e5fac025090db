/** `init slurm`: a config for a cluster that is there, or Slurm's files for hosts that have none. */
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { OnejobError } from '../../base/errors.ts';
import { run } from '../../system/run.ts';
import { exitCodes, wrongUsage } from '../exit.ts';
import type { Session } from '../session.ts';
import { clusterFiles, type HostLook, lookScript, parseLook } from './slurm-hosts.ts';

export interface SlurmFlags {
  readonly hosts?: string;
  readonly dir?: string;
  readonly folder?: string;
  readonly force?: boolean;
}

/** ms to look at a host. */
const patience = 60_000;

/** @throws OnejobError E_USAGE, E_INIT_FILE, E_HOST if a host cannot be looked at: then nothing is written */
export async function initSlurm(session: Session, flags: SlurmFlags): Promise<number> {
  const { output, context } = session;
  const addresses = (flags.hosts ?? '').split(',').flatMap((one) => one.trim() || []);
  const bad = addresses.find((one) => !/^[\w.-]+(@[\w.-]+)?$/.test(one) || one.startsWith('-'));
  if (bad !== undefined) throw wrongUsage(`Cannot look at ${JSON.stringify(bad)}: it is not a name that ssh takes.`);
  if (new Set(addresses).size !== addresses.length) throw wrongUsage('--hosts names a host twice.');
  const dir = resolve(context.cwd, flags.dir ?? 'slurm');
  if (existsSync(dir) && flags.force !== true)
    throw new OnejobError('E_INIT_FILE', `Cannot write to ${dir}: it exists.`, {
      hint: 'Name another folder with --dir, or write --force.',
    });
  const looking = addresses.map(lookAt);
  // A failure is for its turn in the order that was asked for, in which the first one becomes the controller.
  for (const one of looking) one.catch(() => {});
  const looks: HostLook[] = [];
  for (const one of looking) {
    const look = await one;
    output.say(wordsOf(look));
    looks.push(look);
  }
  const [first, ...rest] = looks;
  if (first === undefined) throw wrongUsage('--hosts names no host.', 'For example: onejob init slurm --hosts a,b,c');
  const twice = looks.find(({ name }, at) => looks.findIndex((other) => other.name === name) !== at);
  if (twice !== undefined) throw wrongUsage(`Two of the hosts call themselves ${twice.name}: nodes of Slurm need different names.`);
  const files = clusterFiles({ hosts: [first, ...rest], folder: flags.folder ?? '/shared/onejob' });
  mkdirSync(dir, { recursive: true });
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
  if (output.json) await output.value({ dir, hosts: looks, files: Object.keys(files) });
  else
    await output.print(
      `Wrote ${Object.keys(files).join(', ')} to ${dir}. Nothing was installed.`,
      `Read ${join(dir, 'STEPS.md')} next.`,
    );
  return exitCodes.ok;
}

async function lookAt(address: string): Promise<HostLook> {
  const args = ['-o', 'BatchMode=yes', '-o', 'ConnectTimeout=10', '--', address, 'sh'];
  const ended = await run('ssh', args, { input: lookScript, timeout: patience });
  const look = ended.error === null ? parseLook(address, ended.stdout.toString()) : null;
  if (look !== null) return look;
  const last = ended.stderr.trim().split('\n').at(-1) ?? '';
  const why =
    ended.code === 'ENOENT'
      ? 'the program "ssh" is not installed'
      : last === ''
        ? 'its answer is not whole'
        : last.replace(/\.$/, '');
  throw new OnejobError('E_HOST', `Cannot look at host ${address}: ${why}.`, {
    hint: `"ssh ${address} true" must work without a question: copy your key there with ssh-copy-id.`,
  });
}

function wordsOf({ address, name, sockets, cores, threads, memory, cards, system }: HostLook): string {
  const kinds = [...Map.groupBy(cards, (card) => card)].map(([card, all]) => `${all.length} × ${card}`);
  const gpus = kinds.length === 0 ? 'no NVIDIA GPUs' : kinds.join(', ');
  return `${address}: ${name}, ${system}, ${sockets * cores * threads} CPUs, ${Math.round(memory / 1024)} GiB, ${gpus}`;
}
