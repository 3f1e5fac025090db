/** `cloud check-provider`: its options and help. */
import type { ProviderFlags } from '../cloud-provider.ts';
import { type Cli, collect, duration, wrongOrFailed } from './options.ts';

/** `cloud`: the command that it is part of. */
export function addProviderCommand(cloud: Cli): void {
  cloud
    .command('check-provider')
    .local()
    .description('try a program for a cloud of type "command": each verb, bad input, and with --create a machine')
    .argument('<program>', 'its path')
    .option('--option <key=value>', 'an entry of "options"; may be repeated', collect)
    .option('--secret <key=file>', 'an entry of "secrets", from a file; may be repeated', collect)
    .option('--create', 'also make a machine, inspect it, and remove it')
    .option('--type <type>', 'the type of that machine')
    .option('--image <image>', 'what it boots from (default: auto)')
    .option('--manager-only', 'the program does not end machines by itself, as with "death_date: manager-only"')
    .option('--timeout <time>', 'how long one answer may take (default: 2m)', duration)
    .after(`
Examples:
  onejob cloud check-provider ./incus-provider --manager-only
  onejob cloud check-provider ./incus-provider --manager-only --option remote=lab --create --type gpu-large
  onejob cloud check-provider ./my-provider --secret password=/etc/onejob/cloud.secret --json

It needs neither a config nor a daemon. Each line says what was tried, what was expected, and what came.
See docs/cloud/command.md.
Exit codes: 0 all is as expected; 1 something is not; 2 wrong usage; 130 interrupted.`)
    .does(wrongOrFailed, async (session, program: string, flags: ProviderFlags) =>
      (await import('../cloud-provider.ts')).checkProviderProgram(session, program, flags),
    );
}
