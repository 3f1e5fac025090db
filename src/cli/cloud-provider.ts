/** `onejob cloud check-provider`: tries a program that is to be a cloud of type `command`, for those who write one. */
import { resolve } from 'node:path';
import { createLog } from '../base/log.ts';
import { openCommand } from '../clouds/command/cloud.ts';
import { accept, acceptanceOwner } from '../machines/acceptance.ts';
import { checkProvider } from '../machines/provider-check.ts';
import { tagKeys } from '../ports/cloud.ts';
import { systemClock as clock } from '../system/system-clock.ts';
import { interrupts } from './cloud.ts';
import { lineOf, shown } from './cloud-acceptance.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import type { Session } from './session.ts';

export interface ProviderFlags {
  readonly option?: readonly string[];
  readonly secret?: readonly string[];
  readonly type?: string;
  readonly image?: string;
  readonly create?: boolean;
  readonly managerOnly?: boolean;
  /** ms */
  readonly timeout?: number;
}

/** ms; long enough for all steps. */
const lifetime = 40 * 60_000;

export async function checkProviderProgram(
  { context, output, version }: Session,
  path: string,
  flags: ProviderFlags,
): Promise<number> {
  const { type, image, create = false, managerOnly = false, timeout = 120_000 } = flags;
  if (create && type === undefined) throw wrongUsage('Nobody knows which types the program has.', 'Name one with --type.');
  const program = resolve(context.cwd, path);
  const secrets = pairs('--secret', flags.secret).map(
    ([name, file]) => [name, { kind: 'file', path: resolve(context.cwd, file), expires: null }] as const,
  );
  const config = {
    ...({ name: 'provider', type: 'command', program, timeout, shutdownRemoves: false } as const),
    options: Object.fromEntries(pairs('--option', flags.option)),
    secrets: Object.fromEntries(secrets),
    deathDate: managerOnly ? 'manager-only' : 'cloud',
  } as const;
  const log = createLog({ json: output.json, stream: context.stderr });
  const parts = { clock, fetch, log, variables: context.variables, version };
  using asked = interrupts({ context });
  const seen = {
    clock,
    ended: async (step: Parameters<typeof shown>[0]): Promise<void> => {
      output.progress(null);
      await output.result({ program, ...shown(step) }, () => [lineOf(step, output.colors)]);
    },
    waits: (text: string) => output.progress(text),
    signal: asked.stop,
  };
  try {
    const steps = [...(await checkProvider({ config, parts, ...seen }))];
    if (create && type !== undefined && !asked.stop.aborted) {
      const owner = acceptanceOwner();
      output.say(`now it makes a machine of type ${type} with the tag ${tagKeys.owner}=${owner}, and removes it`);
      const cloud = openCommand(config, parts);
      const plan = { owner, types: [type], spot: 'never', disk: 20, lifetime, waitForEnd: null, keepGoing: true } as const;
      const from = image === undefined ? cloud.usualImage : { ...cloud.usualImage, from: image };
      const result = await accept(cloud, { ...plan, image: from }, { ...seen, confirm: async () => true, hurry: asked.hurry });
      steps.push(...result.steps);
      for (const what of result.left) output.say(`may be left: ${what}`);
    } else if (!create) output.say('it made no machine: --create also tries one, and removes it');
    if (asked.stop.aborted) return exitCodes.cancelled;
    return steps.some(({ result }) => result === 'failed') ? exitCodes.failed : exitCodes.ok;
  } finally {
    output.progress(null);
  }
}

/** `KEY=VALUE` each. */
function pairs(option: string, given: readonly string[] = []): (readonly [key: string, value: string])[] {
  return given.map((text) => {
    const at = text.indexOf('=');
    if (at < 1) throw wrongUsage(`${option} ${JSON.stringify(text)} is not of the form KEY=VALUE.`);
    return [text.slice(0, at), text.slice(at + 1)];
  });
}
