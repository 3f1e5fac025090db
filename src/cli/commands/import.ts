/** `import`: its options and help. */
import { join } from 'node:path';
import { InvalidArgumentError } from 'commander';
import type { HostRule, ImportFlags } from '../compose-import.ts';
import { exitCodes } from '../exit.ts';
import { type Cli, wrongOrFailed } from './options.ts';

export function addImportCommands(program: Cli): void {
  const all = program.command('import').description('create configs from the setup that ran your agents before');

  all
    .command('compose')
    .local()
    .description('read a folder of Compose files, one for each Buildkite agent, and write one config per host')
    .argument('<dir>', 'the folder, with one folder for each agent somewhere in it')
    .option('--host <name=glob>', 'agents of this host, by folder, agent or host name; may be repeated', hostRule)
    .option('--out <dir>', 'write HOST.yml files there instead of printing everything')
    .option('--force', 'overwrite files in --out')
    .after(`
Examples:
  onejob import compose fleet                          show the result
  onejob import compose fleet --out hosts              hosts/HOST.yml for each host
  onejob import compose fleet --host 'lab=rtx-*' --host 'lab=a100-*' --out hosts
  nvidia-smi -L >gpuci.txt                             on the host; then, on a laptop:
  onejob plan --inventory gpuci.txt --config hosts/gpuci.yml

Agents that differ only by number, device and name become one pool. Standard error lists line by line what could not be
carried over, and which agents were assigned to one host and why. No token is read or copied.
Exit codes: 0, also when something was not carried over; 1 a file could not be read, or writing failed; 2 wrong usage.`)
    .does(wrongOrFailed, async (session, dir: string, flags: ImportFlags) => {
      const { composeOnejob, loadComposeImport } = await import('../compose-import.ts');
      const { importComposeFolder } = await loadComposeImport(join(import.meta.dirname, '..', '..', '..'));
      const isWhole = await importComposeFolder(session, dir, flags, composeOnejob(session.context.environment));
      return isWhole ? exitCodes.ok : exitCodes.failed;
    });
}

function hostRule(text: string, before: readonly HostRule[] | undefined): HostRule[] {
  const [, name, glob] = /^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})=(.+)$/.exec(text) ?? [];
  if (name === undefined || glob === undefined) throw new InvalidArgumentError("It must be NAME=GLOB, such as 'lab=gpu-*'.");
  return [...(before ?? []), { name, glob }];
}
