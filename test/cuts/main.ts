/**
 * Cuts the power of a busy host, or reboots it, at random moments: `npm run test:cuts -- 20`. After each it says what is wrong. What
 * came of it is added to test/hosts/results/cuts.json. docs/testing.md says more.
 */
import { randomInt } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { createHost, type Host, lacksHost, makeHost } from '../hosts/machine.ts';
import { seeded } from '../support/seeded.ts';
import { judge, type Look, ownJobs, type Seen, type Story, type Told } from './judge.ts';
import { type Lab, startLab } from './lab.ts';
import { type CutsRun, keepRun, type PoolCounts, resultsFile, treeHere } from './results.ts';
import { type Service, startServices } from './services.ts';

const usage = `npm run test:cuts -- N [options]

Boots a host, cuts its power or reboots it N times while it runs jobs, and says what is wrong afterwards.

  --seed SEED        draws the same moments again
  --services NAMES   CI services beside the own queue; default buildkite,gitea
  --help

Exits with 1 when something is wrong, and with 0 when such a host cannot be had here. Ctrl-C ends it, and what it
has judged stays.`;

const { values, positionals } = parseArgs({
  options: {
    seed: { type: 'string' },
    services: { type: 'string', default: 'buildkite,gitea' },
    help: { type: 'boolean', short: 'h', default: false },
  },
  allowPositionals: true,
});
const times = Number(positionals[0]);
if (values.help || !Number.isInteger(times) || times < 1) {
  console.log(usage);
  process.exit(values.help ? 0 : 2);
}
const why = lacksHost();
if (why !== null) {
  console.log(`Skipped: no host whose power can be cut can be had here: ${why}.`);
  process.exit(0);
}

const from = performance.now();
const say = (text: string): void => console.log(`${((performance.now() - from) / 60_000).toFixed(1)} min  ${text}`);

const seed = Number(values.seed ?? randomInt(2 ** 31)) | 0;
const draw = seeded(seed);
/** One of three is a reboot in order. */
const isReboot = (): boolean => draw() < 1 / 3;
/** Others hit a service that starts, and looks at what is there. */
const isBusy = (): boolean => draw() < 2 / 3;
/** s from the first job, or from when a script can be started in the host. */
const moment = (): number => draw() * 25;
/** Coming to rest takes longer than all else: the other cuts hit a host that has not done so since the one before. */
const judgedEvery = 4;

/** Pools of the own queue, and their agents. */
const own = { build: 2, proc: 2 };
const evidence = 'volumes: ["/mnt/evidence:/evidence:rw"]';

/** What has happened to the host since it was installed. */
class Past {
  cuts = 0;
  reboots = 0;
  readonly told: Told[] = [];
  readonly violations: string[] = [];
  readonly lab: Lab;
  readonly services: readonly Service[];
  /** Before the first cut. */
  readonly before: Look;
  readonly agentsBefore: readonly number[];

  constructor(lab: Lab, services: readonly Service[], before: Look, agentsBefore: readonly number[]) {
    [this.lab, this.services, this.before, this.agentsBefore] = [lab, services, before, agentsBefore];
  }
}

async function interrupt(past: Past, n: number): Promise<void> {
  const { host, load } = past.lab;
  const [busy, after, reboot] = [isBusy(), moment(), isReboot()];
  const feeds = past.services.map((one) => one.feed(`${seed}-${n}`));
  const clients = load(`${seed}-${n}`, Object.keys(own));
  if (busy) await clients.accepted();
  await sleep(after * 1_000);
  if (reboot) await host.off();
  else await host.cut();
  if (reboot) past.reboots += 1;
  else past.cuts += 1;
  const told = await clients.told();
  await Promise.all(feeds.map((end) => end()));
  past.told.push(...told);
  const accepted = told.filter((one) => 'accepted' in one || 'ended' in one).length;
  say(
    `${n} of ${times}: a ${reboot ? 'reboot' : 'power cut'} ${after.toFixed(1)} s after ${busy ? 'the first job' : 'the boot'}, ${accepted} jobs handed in`,
  );
  await host.boot('soon');
}

/** Judges the host, and keeps what is wrong with all that may explain it. */
async function judged(past: Past, n: number): Promise<readonly Seen[]> {
  const { lab, services, told, before } = past;
  const look = await lab.look();
  const ofServices = (await Promise.all(services.map((one) => one.seen()))).flat();
  const strangers = await Promise.all(services.map((one, at) => agentsLeft(one, past.agentsBefore[at] ?? 0)));
  const story: Story = {
    told,
    services: ofServices,
    interruptions: past.cuts + past.reboots,
    agents: { ...own, ...Object.fromEntries(services.map(({ pool, agents }) => [pool, agents])) },
    evidence: lab.evidence(),
    before,
  };
  const found = [...judge(story, look), ...strangers.flat()].filter((one) => !past.violations.includes(one));
  past.violations.push(...found);
  const seen = [...ownJobs(look.jobs, told), ...ofServices];
  const lost = seen.filter(({ end }) => end === 'lost').length;
  say(`judged: ${seen.length} jobs, ${lost} of them lost; ${found.length === 0 ? 'nothing is wrong' : found.join('\n  ')}`);
  if (found.length > 0) {
    const folder = join(import.meta.dirname, '../../node_modules/.cache/onejob-cuts', `${seed}-${n}`);
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'violations'), `${found.join('\n')}\n`);
    writeFileSync(join(folder, 'look.json'), JSON.stringify(look, null, 1));
    writeFileSync(join(folder, 'story.json'), JSON.stringify(story, null, 1));
    writeFileSync(join(folder, 'journal'), await lab.journal());
    console.log(`What may explain it is in ${folder}.`);
  }
  return seen;
}

/** A service may know no more agents than before the first cut, once it has learnt which are gone. */
async function agentsLeft({ name, agentsThere }: Service, before: number): Promise<string[]> {
  for (const until = Date.now() + 120_000; ; await sleep(500)) {
    const there = await agentsThere();
    if (there.length === before) return [];
    if (Date.now() > until) return [`${name} knows ${there.length} agents instead of ${before}: ${there.join(', ')}.`];
  }
}

function counts(seen: readonly Seen[], services: readonly Service[]): Record<string, PoolCounts> {
  const pools = [...Object.keys(own).map((pool) => ({ pool, name: 'own queue' })), ...services];
  return Object.fromEntries(
    pools.map(({ pool, name }) => {
      const ended = seen.filter((one) => one.pool === pool && one.end !== 'open');
      return [pool, { service: name, jobs: ended.length, lost: ended.filter(({ end }) => end === 'lost').length }];
    }),
  );
}

function configOf(services: readonly Service[]): string {
  return `defaults: { trust: { network: default } }
${services.length === 0 ? '' : 'services:\n'}${services.map((one) => `  ${one.config.service}\n`).join('')}pools:
  build: { agents: ${own.build}, image: "debian:stable-slim", ${evidence} }
  proc: { agents: ${own.proc}, runtime: process, network: none, ${evidence} }
${services.map((one) => `  ${one.config.pool}\n`).join('')}`;
}

/** All interruptions of a host. Resolves with whether nothing was wrong. */
async function play(host: Host, services: readonly Service[]): Promise<boolean> {
  const lab = await startLab(host, {
    config: configOf(services),
    files: Object.assign({}, ...services.map(({ files }) => files)),
    secrets: Object.assign({}, ...services.map(({ secrets }) => secrets)),
    ports: services.flatMap(({ ports }) => ports),
  });
  say('installed');
  const ask = `docker version --format '{{.Server.Version}} (API {{.Server.APIVersion}})'; uname -r; systemctl --version | sed -n '1s/^systemd //p'`;
  const [engine = '', kernel = '', systemd = ''] = (await host.sh(ask)).split('\n');
  const before = await lab.look();
  if (before.restless !== null) {
    console.log(await lab.journal());
    throw new Error(`The host does not come to rest before its first cut: ${before.restless}`);
  }
  const past = new Past(lab, services, before, await Promise.all(services.map(async (one) => (await one.agentsThere()).length)));
  for (let n = 1; n <= times; n += 1) {
    await interrupt(past, n);
    if (n % judgedEvery !== 0 && n < times) continue;
    const seen = await judged(past, n);
    const { cuts, reboots, violations } = past;
    const run: CutsRun = { date, tree, engine, kernel, systemd, seed, cuts, reboots, pools: counts(seen, services), violations };
    keepRun(run);
  }
  const { isClean, said } = await lab.end();
  say(`after "onejob down": ${said.split('\n').at(-1)}`);
  if (!isClean) console.log(said);
  return past.violations.length === 0 && isClean;
}

const tree = treeHere();
const date = new Date().toISOString();
console.log(`${times} power cuts and reboots of the tree ${tree} with the seed ${seed}.`);
const asked = new Promise<NodeJS.Signals>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, resolve);
});
await using all = new AsyncDisposableStack();
// Whoever asks it to end now waits for that: a half-started service could not be ended.
const services = await startServices(values.services.split(','), say);
for (const service of services) all.use(service);
const isRight = await Promise.race([
  makeHost().then(() => play(all.use(createHost()), services)),
  asked.then((signal) => {
    say(`ends, because it got ${signal}; what was judged is in ${resultsFile}`);
    return null;
  }),
]);
await all.disposeAsync();
// What was under way hangs on a machine that is gone.
process.exit(isRight === null ? 2 : isRight ? 0 : 1);
