/** `onejob status`: problems first, then one line per slot. */
import type { Client } from '../api/client.ts';
import { offerText } from '../clouds/offer.ts';
import type { AboutView, CloudHostView, PoolView, SlotView, StatusView } from '../contract/schema.ts';
import { sleep } from '../core/clock.ts';
import { systemClock } from '../system/system-clock.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';
import { type Colors, colored, cut, formatAge, hang, plural, printable, redrawn, table } from './text.ts';

const redrawEvery = 1_000;

export type StatusFlags = { readonly watch?: boolean; readonly wide?: boolean };

/** Whether all that the config asks for can work: what people have paused on purpose is well. */
export function isWell({ missing, quarantined, pools }: StatusView): boolean {
  return missing.length + quarantined.length === 0 && pools.every(({ outage }) => outage !== true);
}

/** 1 unless all is well. */
export async function showStatus(session: Session, { watch = false, wide = false }: StatusFlags): Promise<number> {
  const { output } = session;
  return withDaemon(session, async (client) => {
    for (let isAtFirst = true; ; ) {
      const status = await client.status();
      if (output.json) await output.value(status);
      else {
        isAtFirst &&= await isNew(client, status);
        const width = wide ? null : output.width;
        const lines = [...statusLines(status, output.colors, width, wide), ...(isAtFirst ? firstSteps : [])];
        if (watch && output.width !== null) await output.write('stdout', `${redrawn(lines)}\n`);
        else await output.print(...lines);
      }
      if (!watch) return isWell(status) ? exitCodes.ok : exitCodes.failed;
      await sleep(systemClock, redrawEvery);
    }
  });
}

/** What to do on a host that has done nothing yet. */
const firstSteps = [
  '',
  'No job has run here yet. Try one with "onejob run -- echo hello",',
  'or connect a CI service: "onejob init" says which there are, and writes the config.',
];

/** Whether nobody has written a config and no job ever came. The history outlives the jobs. */
async function isNew(client: Pick<Client, 'jobs' | 'history'>, { config, temporary }: StatusView): Promise<boolean> {
  if (config !== null || temporary) return false;
  if ((await client.jobs({ all: true, pool: null, limit: 1 })).length > 0) return false;
  const ever = { by: 'pool', pool: null, since: null, until: null, service: null, image: null, device: null } as const;
  return (await client.history(ever)).length === 0;
}

/** `width`: null for a pipe, where nothing is cut. `links`: also links to jobs. */
export function statusLines(status: StatusView, colors: Colors, width: number | null, links = false): string[] {
  const kind = status.temporary ? 'temporary daemon' : 'daemon';
  const state = status.stopping ? colors.yellow(', stopping') : '';
  const lines = [`onejob ${status.version}, ${kind}, pid ${status.pid}${state}; config: ${status.config ?? 'none (defaults)'}`];
  const say = (paint: (text: string) => string, lead: string, text: string) =>
    lines.push(...hang(lead, printable(text), width).map(paint));
  if (status.runtimeReason !== null) say(colors.dim, '', status.runtimeReason);
  if (status.weaker !== null) say(colors.dim, '', status.weaker);
  if (status.configChanged !== null) say(colors.yellow, '! ', status.configChanged);
  for (const problem of status.problems) say(colors.red, '! ', problem);
  for (const pool of status.pools) {
    for (const problem of poolProblems(pool)) say(colors.yellow, '! ', `${pool.name}: ${problem}`);
    for (const problem of deviceProblems(pool, status)) say(colors.red, '! ', `${pool.name}: ${problem}`);
  }
  const pools = new Set(status.pools.map(({ name }) => name));
  for (const { slot, why } of status.missing) if (!pools.has(poolOf(slot))) say(colors.red, '! ', why);
  for (const pool of status.pools) lines.push('', ...poolLines(pool, colors, width, links));
  if (status.pools.length === 0) lines.push('', 'No pools.');
  for (const host of status.hosts ?? []) lines.push('', ...hostLines(host, colors, width));
  return lines.map((line) => cut(colored(line), width));
}

/** Machines of a host in a cloud. */
function hostLines(view: CloudHostView, colors: Colors, width: number | null): string[] {
  const { host, cloud, machines, max, waiting, reason, refused, held } = view;
  const jobs = waiting === 0 ? '' : `, ${plural(waiting, 'job')} waiting`;
  const lines = [`${colors.bold(host)} in ${cloud}: ${machines.length} of at most ${plural(max, 'machine')}${jobs}`];
  // The command that asked for a machine has said it, but others look here.
  const told = refused === null ? null : [refused.message, refused.hint ?? ''].join(' ').trim();
  for (const why of [reason ?? told, ...held].filter((one) => one !== null))
    lines.push(...hang('! ', printable(why), width).map(colors.yellow));
  const rows = machines.map(({ run, offer, id, state, report, why, cost }) => {
    const work = report === null ? '' : `${report.busy} of ${report.agents} busy`;
    // The end of a long one tells machines apart; where the cloud uses our name, it says nothing new.
    const short = id?.split('/').at(-1) ?? '';
    return [
      run,
      offerText(offer),
      short === run ? '' : short,
      state,
      why ?? report?.problem ?? work,
      cost === null ? '' : `$${cost.toFixed(2)}`,
    ];
  });
  return [...lines, ...table(rows, width, '  ')];
}

export function poolProblems(pool: PoolView): string[] {
  const problems = pool.paused.map((held) => (held.startsWith('by ') ? `paused ${held}` : `nothing new starts: ${held}`));
  if (pool.leaving) {
    // Without a job it goes away by itself, at once.
    if (pool.slots.some(isBusy)) problems.push('the config no longer asks for it; it goes away when its job has ended');
  } else if (pool.draining) problems.push('draining: nothing new starts until "onejob resume"');
  problems.push(...(pool.problems ?? []));
  if (pool.backoff !== null) {
    const { failures, retryIn, reason, waitsFor } = pool.backoff;
    const times = failures === 1 ? 'failed once' : `failed ${failures} times`;
    problems.push(
      `${waitsFor === null ? times : `waits for ${waitsFor}`}, next try ${retryIn <= 0 ? 'now' : `in ${formatAge(retryIn)}`}: ${reason}`,
    );
  }
  if (pool.update !== undefined && pool.update.failure !== null) {
    const { text, retryIn } = pool.update;
    problems.push(`${text}; next try ${retryIn === null || retryIn <= 0 ? 'now' : `in ${formatAge(retryIn)}`}`);
  }
  return problems;
}

/** `13 of 14: MIG-… absent since boot; layout not restored?`, the count only in the first line. */
export function deviceProblems({ name, devices }: PoolView, { missing, quarantined }: StatusView): string[] {
  const mine = [...missing.filter(({ slot }) => poolOf(slot) === name), ...quarantined.filter(({ pool }) => pool === name)];
  const whys = mine.map(({ why }) => why);
  if (devices === null || devices.ready >= devices.wanted) return whys;
  const [first = 'this host has no more devices that fit and are free', ...more] = whys;
  return [`${devices.ready} of ${devices.wanted}: ${first}`, ...more];
}

function poolOf(slot: string): string {
  return slot.slice(0, slot.lastIndexOf('/'));
}

function poolLines(pool: PoolView, colors: Colors, width: number | null, links: boolean): string[] {
  const busy = pool.slots.filter(isBusy).length;
  const ready = pool.slots.filter(({ agent }) => agent.online === true).length;
  const online = ready === 0 ? '' : `, ${ready} online`;
  const waiting = pool.waiting === null ? '' : `, ${pool.waiting} waiting`;
  const held = pool.held === undefined ? '' : `, ${plural(pool.held, 'failed job')} held`;
  const head = `${colors.bold(pool.name)}  ${pool.service} on ${pool.runtime}, ${busy}/${pool.agents} busy${online}${waiting}${held}`;
  const rows = pool.slots.map((slot) => slotRow(slot, colors));
  const [titles = '', ...lines] = table([['SLOT', 'AGENT', 'SINCE', 'STANDBY', 'JOB'], ...rows], null, '  ');
  if (rows.length === 0) return [head];
  const noted = pool.slots.flatMap(({ agent, note, held }, at) => [
    lines[at] ?? '',
    ...(agent.about === null ? [] : jobLines(agent.about, links)).flatMap((text) => below(text, width).map(colors.dim)),
    ...[...new Set([note, held])].flatMap((text) => (text === null ? [] : below(text, width).map(colors.yellow))),
  ]);
  const tried = pool.update === undefined || pool.update.failure !== null ? [] : below(pool.update.text, width).map(colors.dim);
  return [head, ...tried, colors.dim(titles), ...noted];
}

function below(text: string, width: number | null): string[] {
  return hang('    ', printable(text), width);
}

/** An agent that waits for a job is not busy. */
export function isBusy({ agent: { state, job } }: SlotView): boolean {
  if (state === 'releasing') return job !== null;
  return state !== 'free' && state !== 'registering' && state !== 'idle' && state !== 'retiring';
}

/** Origin and link of a job: `refs/heads/main of acme/app, pullRequest`, as far as its service says. */
function jobLines({ branch, repository, reason, link }: AboutView, links: boolean): string[] {
  const from = [branch, repository].filter((part) => part !== null).join(' of ');
  const origin = [from, reason ?? ''].filter((part) => part !== '').join(', ');
  return [origin, links ? (link ?? '') : ''].filter((line) => line !== '');
}

function slotRow({ key, agent, standby, devices, leaving }: SlotView, colors: Colors): string[] {
  const [state, doing] = agentWords(agent, colors);
  const details = [doing, ...(devices.length === 0 ? [] : [devices.join(',')])].filter((each) => each !== '');
  if (leaving.length > 1) details.push(colors.dim(`clearing ${leaving.length}`));
  const ready = standby.state === 'none' ? '-' : standby.state === 'standby' ? 'ready' : preparing(standby.since);
  return [key, state, agent.since === null ? '' : formatAge(agent.since), ready, details.join('  ')];
}

/** The agent's state, and what it does or waits for. */
function agentWords({ state, job, about, online }: SlotView['agent'], colors: Colors): [string, string] {
  const name = [job ?? '', about === null ? '' : printable(about.title)].filter((part) => part !== '').join('  ');
  switch (state) {
    case 'busy':
      return [colors.green(state), name];
    case 'stopping':
    case 'killing':
      return [colors.yellow(state), name];
    case 'idle':
      return online === true ? ['online', colors.dim('waits for a job')] : ['starting', colors.dim('not online yet')];
    case 'free':
      return online === true ? ['online', colors.dim('waits for a job')] : [state, name];
    case 'retiring':
      return [colors.yellow('ending'), colors.dim('takes no job')];
    default:
      return [state, name];
  }
}

function preparing(since: number | null): string {
  return since === null ? 'preparing' : `preparing ${formatAge(since)}`;
}
