/** `image choose`: its options and help. */
import { type Command, Option } from 'commander';
import { OnejobError } from '../../errors.ts';
import { exitCodes } from '../exit.ts';
import type { ImageFlags } from '../image.ts';
import type { GlobalFlags } from '../session.ts';
import { type Act, collect, global } from './options.ts';

export function addImageCommands(program: Command, act: Act): void {
  const image = program.command('image').description('which image fits the GPUs of a host');

  const choose = image
    .command('choose')
    .description('print the image that "image: auto" takes, for this host or a recorded one')
    .option('--explain', 'say step by step why, on standard error')
    .option('--from <file|dir>', 'a recording of what nvidia-smi printed, instead of this host')
    .option('--device <uuid>', 'for an agent with this device only; may be repeated (default: all that are there)', collect)
    .addOption(new Option('--flavour <flavour>', 'how much of CUDA it has').choices(['base', 'runtime', 'devel']).default('devel'))
    .option('--distribution <name>', 'such as ubuntu22.04 (default: the best one there is)')
    .addOption(new Option('--arch <arch>', 'for another architecture').choices(['amd64', 'arm64']))
    .option('--tables <file>', 'newer tables of images and drivers than those that are built in')
    .addHelpText(
      'after',
      `
Examples:
  docker pull "$(onejob image choose)"
  onejob image choose --explain --distribution ubuntu22.04
  onejob image choose --from nvidia-smi.xml --device GPU-5d5e2a5c-7f2b-9e0c-4b7f-0d3a5f1c2e11

A recording is what "nvidia-smi -q -x" printed, or a folder with that and "nvidia-smi -L".
Exit codes: 0 and the image alone on standard output; 1 when none fits, with the reason; 2 wrong usage.`,
    )
    .action((flags: GlobalFlags & ImageFlags) =>
      act(async (session) => (await import('../image.ts')).showImage(session, flags), notChosen)(flags),
    );
  global(choose);
}

function notChosen(error: unknown): number {
  return error instanceof OnejobError && error.code === 'E_USAGE' ? exitCodes.usage : exitCodes.failed;
}
