/**
 * What any program that is a cloud must do, tried from the outside. Each step says what was expected and what came. It makes no machine:
 * what only a machine shows is in `acceptance.ts`.
 */
import { messageOf } from '../base/errors.ts';
import { openCommand } from '../clouds/command/cloud.ts';
import type { CommandConfig } from '../clouds/command/config.ts';
import { protocol, type RunProgram, runProgram } from '../clouds/command/program.ts';
import type { CloudParts } from '../clouds/kit/caller.ts';
import { brief } from '../http/exchange.ts';
import type { Cloud } from '../ports/cloud.ts';
import { acceptanceOwner } from './acceptance.ts';
import { type AcceptanceStep, Over, Steps, type StepsParts, Unmet } from './acceptance-steps.ts';

export interface ProviderCheckParts extends Omit<StepsParts, 'keepGoing'> {
  readonly config: CommandConfig;
  readonly parts: CloudParts;
  readonly run?: RunProgram;
}

/** `look`: what came instead of what was expected; null: that came. An error came instead, too. */
type Trial = readonly [step: string, expected: string, look: () => Promise<string | null>];

/** The end of a name that no machine has. */
const nobody = 'onejob-0000000000000000';

export async function checkProvider({ config, parts, run = runProgram, ...rest }: ProviderCheckParts) {
  const { signal, clock } = rest;
  const cloud = openCommand(config, parts, run);
  const more: RunProgram = (command, input, ...others) =>
    run(command, JSON.stringify({ ...JSON.parse(input), 'x-onejob-unknown': [1] }), ...others);
  const owner = acceptanceOwner();
  const gone = { id: nobody, place: config.name, zone: null };

  /** Whether the program refuses such a call, before it has a secret. */
  const refused = async (verb: string, input: string): Promise<string | null> => {
    const { variables } = parts;
    const end = await run([config.program, verb], input, { clock, variables, timeout: config.timeout }, signal);
    const printed = end.stdout.trim();
    if (end.code === 64 && printed === '') return null;
    return `${end.why ?? 'exit code 0'}${printed === '' ? '' : `, and the output ${JSON.stringify(printed.slice(0, 100))}`}`;
  };
  const empty = async (of: Cloud): Promise<string | null> => {
    const { things, unknown } = await of.list(owner, { places: [], everywhere: true }, signal);
    if (unknown.length > 0) return `an incomplete list: ${unknown.join(', ')}`;
    return things.length === 0 ? null : `${things.length} things`;
  };
  const of = (verb: string, request: object) => JSON.stringify({ version: protocol, verb, options: config.options, ...request });
  const refusal = 'exit code 64 and no output';
  const trials: readonly Trial[] = [
    ['a verb that does not exist', refusal, () => refused('onejob-unknown', of('onejob-unknown', {}))],
    ['a request that is not JSON', refusal, () => refused('list', '{"version": 1, "owner')],
    ['a request of another version', refusal, () => refused('list', JSON.stringify({ version: 1_000, verb: 'list', owner }))],
    ['a removal without an id', refusal, () => refused('destroy', of('destroy', {}))],
    ['the list of an owner who has nothing', 'an empty, complete list', () => empty(cloud)],
    ['a key that it does not know', 'the same list', () => empty(openCommand(config, parts, more))],
    [
      'two lists at once',
      'the same list twice',
      async () => (await Promise.all([empty(cloud), empty(cloud)])).find((got) => got !== null) ?? null,
    ],
    [
      'the removal of a machine that does not exist',
      'success',
      () => cloud.destroy({ ...gone, kind: 'machine' }, signal).then(() => null),
    ],
    [
      'the console of a machine that does not exist',
      'an empty text, or a refusal',
      async () => {
        const text = await cloud.console(gone, signal).catch(() => '');
        return text === '' ? null : `${text.length} characters`;
      },
    ],
  ];
  const now = Math.floor(clock.wall() / 1000);
  const birth = { owner, run: nobody, host: 'check', born: now, expires: now + 3_600 };
  const end: Trial = [
    'the end of a machine that does not exist',
    'a refusal',
    () =>
      cloud.setEnd(birth, gone, signal).then(
        (text) => `success: ${text}`,
        () => null,
      ),
  ];
  return tried(new Steps({ ...rest, keepGoing: true }), [...trials, ...(cloud.capabilities.holdsEnd ? [end] : [])]);
}

async function tried(steps: Steps, trials: readonly Trial[]): Promise<readonly AcceptanceStep[]> {
  for (const [step, expected, look] of trials) {
    const trying = steps.step(step, async () => {
      const got = await look().catch((error: unknown) => brief(messageOf(error)));
      if (got === null) return `Expected ${expected}; that came.`;
      throw new Unmet(`Expected ${expected}; got ${got.replace(/\.$/, '')}.`);
    });
    // It was interrupted.
    if ((await trying.catch(isOver)) === null) break;
  }
  return steps.done;
}

function isOver(error: unknown): null {
  if (error instanceof Over) return null;
  throw error;
}
