/** `gpus reserve`, `return`, `quarantine`, `clear`, `forget`, and `proofs`: their options and help. */
import { type Command, InvalidArgumentError } from 'commander';
import type { DeviceChange } from '../../api/device-schema.ts';
import { parseDuration } from '../../config/units.ts';
import type { GlobalFlags, Session } from '../session.ts';
import { type Act, failed, global, integer } from './options.ts';

/** What `proofs` lists when nobody says otherwise. */
const proofsListed = 20;
const proofsAtMost = 10_000;

const named = ['<gpu>', 'its UUID or the beginning of it, or the index or PCI address of a GPU'] as const;

/** `gpus`: the command that these are below. */
export function addDeviceCommands(program: Command, gpus: Command, act: Act): void {
  // So that an option after the name of one of these is its own.
  gpus.enablePositionalOptions();
  const change = <F extends GlobalFlags>(command: Command, of: (flags: F, session: Session) => Promise<DeviceChange>) => {
    command.argument(...named).action((gpu: string, flags: F) =>
      act(async (session) => {
        const { changeDevice } = await import('../device-commands.ts');
        return changeDevice(session, gpu, await of(flags, session));
      }, failed)(flags),
    );
    global(command);
  };
  const person = async ({ context }: Session) => (await import('../device-commands.ts')).personOf(context);

  const reserve = gpus
    .command('reserve')
    .description('take a device for yourself; the job that runs on it ends first')
    .option('--for <time>', 'give it back by itself after this time, such as 4h or 2d', duration)
    .addHelpText(
      'after',
      `
Examples:
  onejob gpus reserve 0 --for 4h
  onejob gpus reserve GPU-8f6a          the beginning of its UUID is enough
  onejob gpus return GPU-8f6a

A card in MIG mode is taken with all its instances. Reserving it again changes for how long.`,
    );
  change<GlobalFlags & { for?: number }>(reserve, async (flags, session) => ({
    act: 'reserve',
    for: flags.for ?? null,
    by: await person(session),
  }));

  const giveBack = gpus.command('return').description('give a reserved device back; it is looked at before a job gets it');
  change(giveBack, async () => ({ act: 'return' }));

  const quarantine = gpus
    .command('quarantine')
    .description('take a device out of use until "gpus clear"; the job that runs on it ends first')
    .option('--reason <text>', 'what is wrong with it, for those who look');
  change<GlobalFlags & { reason?: string }>(quarantine, async (flags, session) => ({
    act: 'quarantine',
    reason: flags.reason || `put there by ${(await person(session)) ?? 'somebody'}`,
  }));

  const clear = gpus.command('clear').description('take a device out of quarantine');
  change(clear, async () => ({ act: 'clear' }));

  const forget = gpus.command('forget').description('no longer miss a device that will not come back');
  change(forget, async () => ({ act: 'forget' }));

  const proofs = program
    .command('proofs')
    .description('how devices were found after each agent, the newest last')
    .argument('[device]', 'its UUID or the beginning of it, or the index or PCI address of a GPU; default: all')
    .option('--limit <n>', `only the newest; ${proofsListed} unless said`, integer(1, proofsAtMost))
    .action((device: string | undefined, flags: GlobalFlags & { limit?: number }) =>
      act(
        async (session) => (await import('../proofs.ts')).listProofs(session, device ?? null, flags.limit ?? proofsListed),
        failed,
      )(flags),
    );
  global(proofs);
}

function duration(text: string): number {
  const parsed = parseDuration(text);
  if (!parsed.ok) throw new InvalidArgumentError(`${parsed.why}.`);
  if (parsed.value <= 0) throw new InvalidArgumentError('It must be longer than nothing.');
  return parsed.value;
}
