/** `image choose`, `build`, `list`, `prune` and `refresh`: their options and help. */
import { Option } from 'commander';
import type { ImageFlags } from '../images.ts';
import { type Cli, collect, failed, wrongOrFailed } from './options.ts';

export function addImageCommands(program: Cli): void {
  const image = program.command('image').description('manage the images of agents');

  image
    .command('choose')
    .local()
    .description('print the image that "image: auto" takes, for this host or a recorded one')
    .option('--explain', 'explain each step on standard error')
    .option('--from <file|dir>', 'use a recording of nvidia-smi output instead of this host')
    .option('--device <uuid>', 'for an agent with only this device; may be repeated (default: all devices)', collect)
    .addOption(
      new Option('--flavour <flavour>', 'how much of CUDA the image has').choices(['base', 'runtime', 'devel']).default('devel'),
    )
    .option('--distribution <name>', 'such as ubuntu22.04 (default: the best available)')
    .addOption(new Option('--arch <arch>', 'for another architecture').choices(['amd64', 'arm64']))
    .option('--tables <file>', 'tables of images and drivers that are newer than the built-in ones')
    .after(`
Examples:
  docker pull "$(onejob image choose)"
  onejob image choose --explain --distribution ubuntu22.04
  onejob image choose --from nvidia-smi.xml --device GPU-5d5e2a5c-7f2b-9e0c-4b7f-0d3a5f1c2e11

A recording is what "nvidia-smi -q -x" printed, or a folder with that and "nvidia-smi -L".
Exit codes: 0 with only the image on standard output; 1 if no image fits, with the reason; 2 wrong usage.`)
    .does(wrongOrFailed, async (session, flags: ImageFlags) => (await import('../images.ts')).showImage(session, flags));

  image
    .command('build')
    .description('build the images that "up" would build when needed; existing images stay')
    .argument('[pool...]', 'default: all pools whose image onejob builds')
    .option('--print', 'print the Dockerfiles instead, and how to build each by hand')
    .after(`
Examples:
  onejob image build                 so that the first agents need not wait
  onejob image build lab --print     what is in the image of pool lab, and why

Works with and without a daemon. ${codes}`)
    .does(wrongOrFailed, async (session, pools: string[], { print = false }: { print?: boolean }) => {
      const images = await import('../images.ts');
      return print ? images.printImages(session, pools) : images.makeImages(session, 'build', pools);
    });

  image
    .command('list')
    .description('list the images that onejob built here, and what uses them')
    .after('\nExample:\n  onejob image list --json | jq -r .reference')
    .does(failed, async (session) => (await import('../images.ts')).listImages(session));

  image
    .command('refresh')
    .description('check for a newer agent and base now, and build what is new')
    .argument('[pool...]', 'default: all pools whose image onejob builds')
    .after(`
Example:
  onejob image refresh lab

The daemon checks for a newer agent once a day. Standby and idle agents are replaced slot by slot; a running
job is never touched. A base is pulled again only with "pull: always". ${codes}`)
    .does(wrongOrFailed, async (session, pools: string[]) => (await import('../images.ts')).makeImages(session, 'refresh', pools));

  image
    .command('prune')
    .description('remove images that onejob built and that no pool and no container uses')
    .after('\nImages that onejob did not build are never removed.\n\nExample:\n  onejob image prune')
    .does(failed, async (session) => (await import('../images.ts')).pruneImages(session));
}

const codes = 'Exit codes: 0; 1 if an image could not be built, with the last lines of the build; 2 wrong usage.';
