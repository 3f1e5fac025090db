/** `onejob init`: says for what onejob can set itself up. */
import { serviceTypes } from '../ci/types.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

export async function listServices({ output }: Session): Promise<number> {
  const steps = serviceTypes.flatMap(({ type, init }) =>
    init === null ? [] : [[type, `asks for ${init.asks}, checks them, and writes config and token file`]],
  );
  const known = [...steps, ['own-queue', 'looks at the cards of this host, and writes a config for jobs of "onejob run"']];
  const rows = known.map(([name, does]) => `  onejob init ${name}    ${does}`);
  if (output.json) await output.value(known.map(([name]) => name));
  else await output.print('onejob can set itself up for:', ...rows, '', 'Without a config "onejob run -- COMMAND" works, too.');
  return exitCodes.ok;
}
