/** `onejob cloud acceptance`: creates a machine on a real account, inspects it and removes it, for a person who waits. */

import { cloudType } from '../clouds/types.ts';
import type { Config } from '../config/config.ts';
import { type Acceptance, type AcceptancePlan, accept, acceptanceOwner } from '../machines/acceptance.ts';
import { type AcceptanceStep, spoken } from '../machines/acceptance-steps.ts';
import type { Cloud } from '../ports/cloud.ts';
import { suggestAtEnd } from '../schema/problem.ts';
import { systemClock as clock } from '../system/system-clock.ts';
import { adapters, cloudConfig, hostOf, interrupts, ofClouds } from './cloud.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { Interrupted, openPerson } from './init/ask.ts';
import type { Session } from './session.ts';

export interface AcceptanceFlags {
  readonly host?: string;
  readonly type?: string;
  /** ms */
  readonly lifetime?: number;
  /** ms; true: the usual time. */
  readonly waitForEnd?: number | true;
  readonly keepGoing?: boolean;
  readonly yes?: boolean;
  readonly markdown?: boolean;
}

/** ms; long enough for all steps of the slowest cloud. */
const usualLifetime = 40 * 60_000;
/** ms; the shortest that `lifetime` of a host may be. */
const shortLifetime = 15 * 60_000;
/** GiB */
const usualDisk = 100;

export async function acceptCloud(session: Session, name: string, flags: AcceptanceFlags): Promise<number> {
  const { output, context, version } = session;
  const { yes = false, markdown = false } = flags;
  if (markdown && output.json) throw wrongUsage('Choose one of --markdown and --json.');
  const used = ofClouds([name]);
  const config = await cloudConfig(session, used);
  const names = config.clouds.map((one) => one.name);
  const written = config.clouds.find((one) => one.name === name);
  if (written === undefined)
    throw wrongUsage(`The config has no cloud ${JSON.stringify(name)}; ${suggestAtEnd(name, names)}`, 'Name a key of "clouds".');
  const canAsk = context.stdin().isTTY === true && output.isTerminal('stderr');
  if (!yes && !canAsk)
    throw wrongUsage('This makes machines that cost money, and there is no terminal to ask at.', 'Add --yes to agree to that.');
  using opened = await adapters(session, used(config), acceptanceOwner());
  const cloud = opened.clouds.get(name)?.cloud;
  if (cloud === undefined) return exitCodes.usage;
  const plan = planOf(config, cloud, flags);

  using asked = interrupts(session);
  asked.stop.addEventListener('abort', () => output.say('interrupted; removing what was made. Interrupt again to leave it.'));
  output.say(`everything that this makes has the owner ${plan.owner}. If it is killed, run: ${sweepOf(session, plan.owner, name)}`);
  try {
    const result = await accept(cloud, plan, {
      clock,
      confirm: (text) => (yes ? Promise.resolve(true) : confirmed(session, text)),
      async ended(step) {
        output.progress(null);
        if (markdown) output.say(`${step.step}: ${step.result} (${spoken(step.took)})`);
        else await output.result({ cloud: name, owner: plan.owner, ...shown(step) }, () => [lineOf(step, output.colors)]);
      },
      waits: (text) => output.progress(text),
      signal: asked.stop,
      hurry: asked.hurry,
    });
    output.progress(null);
    if (markdown) await output.print(...markdownOf(result, { cloud, version, wall: clock.wall() }));
    for (const what of result.left) output.say(`may be left: ${what}`);
    if (result.left.length > 0) output.say(`remove it with: ${sweepOf(session, plan.owner, name)}`);
    if (result.end !== 'done') return exitCodes.cancelled;
    return result.steps.some((step) => step.result === 'failed') ? exitCodes.failed : exitCodes.ok;
  } finally {
    output.progress(null);
  }
}

function planOf(config: Config, cloud: Cloud, { host: named, type, keepGoing = false, ...flags }: AcceptanceFlags): AcceptancePlan {
  const host = named === undefined ? null : hostOf(config, named);
  if (host !== null && host.cloud !== cloud.name)
    throw wrongUsage(`Host ${host.host} is in cloud ${host.cloud}, not in ${cloud.name}.`);
  const why = type === undefined ? null : cloudType(cloud.type).typeProblem(type);
  if (why !== null) throw wrongUsage(why);
  const { waitForEnd } = flags;
  const usual = type ?? cloudType(cloud.type).cheapType;
  if (usual === null && host === null)
    throw wrongUsage(`Nobody knows which types cloud ${cloud.name} has.`, 'Name one with --type or --host.');
  return {
    owner: acceptanceOwner(),
    keepGoing,
    types: (type === undefined ? host?.types : null) ?? [usual ?? ''],
    spot: host?.spot ?? 'never',
    image: host?.image ?? cloud.usualImage,
    disk: host?.disk ?? usualDisk,
    lifetime: flags.lifetime ?? usualLifetime,
    waitForEnd: waitForEnd === undefined ? null : waitForEnd === true ? shortLifetime : waitForEnd,
  };
}

async function confirmed({ context, output }: Session, text: string): Promise<boolean> {
  output.progress(null);
  const closed = wrongUsage(
    'The input ended before the question was answered; no machine was made.',
    'Add --yes to make it without a question.',
  );
  using person = openPerson(context.stdin(), context.stderr, closed);
  const read = (typed: string) =>
    /^(y|yes|n|no)$/i.test(typed) ? { value: /^y/i.test(typed) } : { again: 'Answer with yes or no.' };
  try {
    return await person.ask({ text: `Make it? ${text}`, usual: 'no', read });
  } catch (error) {
    if (error instanceof Interrupted) return false;
    throw error;
  }
}

/** The command that removes everything of this owner. */
function sweepOf({ flags }: Session, owner: string, cloud: string): string {
  const config = flags.config === undefined ? '' : ` --config ${flags.config}`;
  return `onejob cloud sweep --owner ${owner} --cloud ${cloud} --all${config}`;
}

/** As JSON has a step. */
export const shown = ({ step, result, took, evidence }: AcceptanceStep) => ({
  step,
  result,
  seconds: Math.round(took / 1000),
  evidence,
});

const marks = { ok: '✓', warning: '!', failed: '✗', skipped: '–' } as const;

export function lineOf({ step, result, took, evidence }: AcceptanceStep, colors: Session['output']['colors']): string {
  const time = took < 1000 ? '' : ` (${spoken(took)})`;
  return `${marks[result]} ${colors.bold(step)}${time}: ${evidence}`;
}

/** A table for the page of the cloud. It names no account: its number or id, the id of a key, and addresses of people are left out. */
export function markdownOf(
  { steps }: Pick<Acceptance, 'steps'>,
  { cloud, version, wall }: { readonly cloud: Pick<Cloud, 'type'>; readonly version: string; readonly wall: number },
): string[] {
  const cell = (text: string): string => anonymous(text).replace(/\s+/g, ' ').replace(/\|/g, '\\|');
  return [
    `\`onejob cloud acceptance\` of onejob ${version} at ${cloud.type}, ${new Date(wall).toISOString().slice(0, 10)}:`,
    '',
    '| Step | Result | Took | |',
    '|---|---|---|---|',
    ...steps.map(({ step, result, took, evidence }) => `| ${cell(step)} | ${result} | ${spoken(took)} | ${cell(evidence)} |`),
  ];
}

function anonymous(text: string): string {
  return text
    .replace(/\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/gi, '…')
    .replace(/\b\d{12}\b/g, '…')
    .replace(/\bA[KS]IA[A-Z0-9]{16}\b/g, '…')
    .replace(/[\w.+-]+@[\w-]+(\.[\w-]+)+/g, '…');
}
