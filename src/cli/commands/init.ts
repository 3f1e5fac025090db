/** `init`: its options and help. */

import { serviceTypes } from '../../ci/types.ts';
import type { ServiceType } from '../../config/service-type.ts';
import { exitCodes } from '../exit.ts';
import { type InitSteps, initSteps } from '../init/services.ts';
import type { SlurmFlags } from '../init/slurm.ts';
import type { InitFlags, OpenFrame } from '../init/steps.ts';
import type { GlobalFlags, Session } from '../session.ts';
import { table } from '../text.ts';
import { type Cli, failed, wrongOrFailed } from './options.ts';

export function addInitCommands(program: Cli): void {
  const init = program
    .command('init')
    .local()
    .description('write a first config, for the own queue or a CI service; without a name, list the choices')
    .enablePositionalOptions();
  init.does(failed, listServices);

  init
    .command('own-queue')
    .local()
    .description('read the cards of this host, and write a config for jobs of "onejob run"')
    .option('--force', 'overwrite the config')
    .after(`\nExample:\n  onejob init own-queue\n\n${ending}`)
    .does(wrongOrFailed, async (session, { force = false }: { force?: boolean }) =>
      (await import('../init/steps.ts')).initOwnQueue(session, { force }),
    );

  init
    .command('slurm')
    .local()
    .description('look at hosts over ssh, and write the files that make them a Slurm cluster')
    .option('--hosts <names>', 'hosts as ssh knows them, such as a,b,c; the first becomes the controller')
    .option('--dir <dir>', 'where the files are written (default: slurm)')
    .option('--folder <path>', 'the folder that all hosts share, for agents (default: /shared/onejob)')
    .option('--force', 'write into a folder that exists')
    .after(`
Example:
  onejob init slurm --hosts lab@a,lab@b,lab@c

It installs and changes nothing. STEPS.md in the folder says what to do with the files.`)
    .does(wrongOrFailed, async (session, flags: SlurmFlags) => (await import('../init/slurm.ts')).initSlurm(session, flags));

  for (const service of serviceTypes) if (service.type !== 'own-queue') addSteps(init, service, initSteps[service.type]);
}

function addSteps(
  init: Cli,
  service: ServiceType,
  { asks, options, token, force: alsoForced = '', example, hint, run }: InitSteps,
): void {
  const { type } = service;
  const command = init.command(type).local().description(`ask for ${asks}, check them, write config and token file`);
  for (const [flags, about] of options) command.option(flags, about);
  command
    .option('--token-file <file>', `where ${token.what} is, or will be written (default: ${token.file} next to the config)`)
    .option('--agents <n>', 'number of agents, or per-device')
    .option('--expires <day>', 'last day of the token, such as 2027-05-01')
    .option('-y, --yes', 'use defaults for everything not given, and do not ask for confirmation')
    .option('--force', `overwrite the config, and on a terminal its token file${alsoForced}`)
    .option('--no-check', 'do not check the answers with the service')
    .after(`
Examples:
  onejob init ${type}
  onejob init ${type} ${example} --token-file /etc/onejob/${token.file} --yes

${hint}
${ending}`)
    .does(wrongOrFailed, async (session, given: Omit<GlobalFlags, 'host'> & Partial<Omit<InitFlags, 'own'>>): Promise<number> => {
      const { tokenFile = null, agents = null, expires = null, yes = false, force = false, check = true, json: _, ...own } = given;
      const flags: InitFlags = { own, tokenFile, agents, expires, yes, force, check };
      const [{ InitFrame }, { unlessInterrupted }] = await Promise.all([import('../init/steps.ts'), import('../init/ask.ts')]);
      const open: OpenFrame = (...asked) => new InitFrame(session, flags, service, token, asked);
      return unlessInterrupted(session.output, () => run(flags, open));
    });
}

/** Lists what onejob can write a config for. */
async function listServices({ output }: Session): Promise<number> {
  const steps = Object.entries(initSteps).map(([type, { asks }]): [string, string] => [
    type,
    `asks for ${asks}, checks them, and writes config and token file`,
  ]);
  const known: [name: string, does: string][] = [
    ...steps,
    ['slurm', 'looks at hosts over ssh, and writes the files that make them a Slurm cluster'],
    ['own-queue', 'reads the cards of this host, and writes a config for jobs of "onejob run"'],
  ];
  const rows = table(
    known.map(([name, does]) => [`onejob init ${name}`, does]),
    null,
    '  ',
  );
  if (output.json) await output.value(known.map(([name]) => name));
  else await output.print('onejob can write a config for:', ...rows, '', '"onejob run -- COMMAND" also works without a config.');
  return exitCodes.ok;
}

const ending = `The config is written to --config FILE, or to the place where a daemon looks for it.
Exit codes: 0 written; 1 not written, or it has problems; 2 wrong usage; 130 after Ctrl-C.`;
