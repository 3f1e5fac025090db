/** `gpus`: its options and help. */
import { type Command, InvalidArgumentError } from 'commander';
import { parseDuration } from '../../config/units.ts';
import type { GlobalFlags } from '../session.ts';
import { addDeviceCommands } from './devices.ts';
import { type Act, failed, global } from './options.ts';

interface Flags extends GlobalFlags {
  readonly watch?: boolean;
  readonly every?: number;
  readonly from?: string;
}

export function addGpuCommands(program: Command, act: Act): void {
  const gpus = program
    .command('gpus')
    .description('the GPUs of this host, who holds them, and what is wrong with them')
    .option('-w, --watch', 'again whenever something changed; in a pipe one JSON object per change')
    .option('--every <time>', 'how often --watch looks (default: 5s)', interval)
    .option('--from <file|dir>', 'read recordings of nvidia-smi, amd-smi, rocm-smi or xpu-smi instead of this host')
    .addHelpText(
      'after',
      `
Examples:
  onejob gpus                                   what jobs could use here
  onejob gpus --json | jq '.devices[].uuid'
  nvidia-smi -q -x >host.xml; nvidia-smi -L >host.txt
  onejob gpus --from .                          the same from recordings, as for a bug report

It asks the host itself, so it needs no daemon.
Exit codes: 0 all seen and nothing wrong; 1 a finding is an error, or not all GPUs could be seen; 2 wrong usage.`,
    )
    .action((flags: Flags) =>
      act(
        async (session) =>
          (await import('../gpus.ts')).showGpus(session, {
            from: flags.from ?? null,
            watch: flags.watch === true,
            every: flags.every ?? 5_000,
          }),
        failed,
      )(flags),
    );
  global(gpus);
  addDeviceCommands(program, gpus, act);
}

function interval(text: string): number {
  const parsed = parseDuration(text);
  if (!parsed.ok) throw new InvalidArgumentError(`${parsed.why}.`);
  if (parsed.value < 100) throw new InvalidArgumentError('It must be at least 100ms.');
  return parsed.value;
}
