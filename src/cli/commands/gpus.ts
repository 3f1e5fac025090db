/** `gpus` with `reserve`, `return`, `quarantine`, `clear` and `forget` below it, and `proofs`: their options and help. */
import { InvalidArgumentError } from 'commander';
import { parseDuration } from '../../base/units.ts';
import type { DeviceChange } from '../../contract/schema.ts';
import type { GpusFlags } from '../gpus.ts';
import type { Session } from '../session.ts';
import { type Cli, failed, integer } from './options.ts';

/** What `proofs` lists without `--limit`. */
const proofsListed = 20;
const proofsAtMost = 10_000;

const named = ['<gpu>', 'its UUID or the beginning of it, or the index or PCI address of a GPU'] as const;

export function addGpuCommands(program: Cli): void {
  const gpus = program
    .command('gpus')
    .local()
    .description('list the GPUs of this host, who holds them, and their problems')
    .option('-w, --watch', 'print again whenever something changes; in a pipe, one JSON object per change')
    .option('--every <time>', 'how often --watch checks (default: 5s)', duration(100, 'at least 100ms'))
    .option('--from <file|dir>', 'read recordings of nvidia-smi, amd-smi, rocm-smi or xpu-smi instead of this host')
    .after(`
Examples:
  onejob gpus                                   what jobs could use here
  onejob gpus --json | jq '.devices[].uuid'
  nvidia-smi -q -x >host.xml; nvidia-smi -L >host.txt
  onejob gpus --from .                          the same from recordings, as for a bug report

It reads the host directly and needs no daemon.
Exit codes: 0 all GPUs read and no errors; 1 a finding is an error, or not all GPUs could be read; 2 wrong usage.`);
  gpus.does(failed, async (session, flags: GpusFlags) => (await import('../gpus.ts')).showGpus(session, flags));

  // An option after the name of one of these commands belongs to it.
  gpus.enablePositionalOptions();
  const change = <F>(command: Cli, of: (flags: F, session: Session) => Promise<DeviceChange>) =>
    command.argument(...named).does(failed, async (session, gpu: string, flags: F) => {
      const { changeDevice } = await import('../gpus.ts');
      return changeDevice(session, gpu, await of(flags, session));
    });
  const person = async ({ context }: Session) => (await import('../gpus.ts')).personOf(context);

  const reserve = gpus
    .command('reserve')
    .description('reserve a device for yourself; the job that runs on it may finish')
    .option('--for <time>', 'give it back automatically after this time, such as 4h or 2d', duration(1, 'longer than 0'))
    .after(`
Examples:
  onejob gpus reserve 0 --for 4h
  onejob gpus reserve GPU-8f6a          the beginning of its UUID is enough
  onejob gpus return GPU-8f6a

A card in MIG mode is reserved with all its instances. Reserving it again changes the time.`);
  change<{ for?: number }>(reserve, async (flags, session) => ({
    act: 'reserve',
    for: flags.for ?? null,
    by: await person(session),
  }));

  const plain = (act: 'return' | 'clear' | 'forget', description: string) =>
    change(gpus.command(act).description(description), async () => ({ act }));
  plain('return', 'give a reserved device back; it is checked before a job gets it');

  const quarantine = gpus
    .command('quarantine')
    .description('take a device out of use until "gpus clear"; the job that runs on it may finish')
    .option('--reason <text>', 'what is wrong with it, shown in status and "gpus"');
  change<{ reason?: string }>(quarantine, async (flags, session) => ({
    act: 'quarantine',
    reason: flags.reason || `put there by ${(await person(session)) ?? 'somebody'}`,
  }));

  plain('clear', 'take a device out of quarantine');
  plain('forget', 'forget a missing device that will not come back');

  program
    .command('proofs')
    .description('list the checks of devices after each agent, the newest last')
    .argument('[device]', 'its UUID or the beginning of it, or the index or PCI address of a GPU; default: all')
    .option('--limit <n>', `only the newest (default: ${proofsListed})`, integer(1, proofsAtMost))
    .does(failed, async (session, device: string | undefined, { limit = proofsListed }: { limit?: number }) =>
      (await import('../gpus.ts')).listProofs(session, device ?? null, limit),
    );
}

/** `least`: ms; `what` says the same. */
function duration(least: number, what: string): (text: string) => number {
  return (text) => {
    const parsed = parseDuration(text);
    if (!parsed.ok) throw new InvalidArgumentError(`${parsed.why}.`);
    if (parsed.value < least) throw new InvalidArgumentError(`It must be ${what}.`);
    return parsed.value;
  };
}
