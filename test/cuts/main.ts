/**
 * Cuts the power of a busy host, or reboots it, at random moments: `npm run test:cuts -- 20`. After each it says what is wrong. What
 * came of it is added to test/hosts/results/cuts.json. docs/testing.md says more.
 */
import { randomInt } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { lacksHost, makeHost } from '../hosts/machine.ts';
import { dice } from './inside/dice.ts';
import { judge, type Look, ownJobs, type Seen, type Story, type Told } from './judge.ts';
import { type Lab, startLab } from './lab.ts';
import { type CutsRun, keepRun, type PoolCounts, treeHere } from './results.ts';

const usage = `npm run test:cuts -- N [--seed SEED]

Boots a host, cuts its power or reboots it N times while it runs jobs, and says what is wrong afterwards.

  --seed SEED   draws the same moments again
  --help

Exits with 1 when something is wrong, and with 0 when such a host cannot be had here.`;

const { values, positionals } = parseArgs({
  options: { seed: { type: 'string' }, help: { type: 'boolean', short: 'h', default: false } },
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

const seed = Number(values.seed ?? randomInt(2 ** 31)) | 0;
const draw = dice(seed);
/** One of three is a reboot in order. */
const isReboot = (): boolean => draw() < 1 / 3;
/** s. Jobs begin a few seconds after their clients. */
const moment = (): number => 2 + draw() * 23;
/** Half of the cuts hit a host that has not yet come to rest after the one before. */
const isJudged = (): boolean => draw() < 1 / 2;

const agents = { build: 2, proc: 2 };
const evidence = 'volumes: ["/mnt/evidence:/evidence:rw"]';
const config = `pools:
  build: { agents: ${agents.build}, image: "debian:stable-slim", ${evidence} }
  proc: { agents: ${agents.proc}, runtime: process, ${evidence} }
`;

const from = performance.now();
const say = (text: string): void => console.log(`${((performance.now() - from) / 60_000).toFixed(1)} min  ${text}`);

/** What has happened to the host since it was installed. */
interface Past {
  cuts: number;
  reboots: number;
  readonly told: Told[];
  readonly violations: string[];
}

async function interrupt(lab: Lab, past: Past, n: number): Promise<void> {
  const [after, reboot] = [moment(), isReboot()];
  const clients = lab.load(`${seed}-${n}`, seed + n, Object.keys(agents));
  await sleep(after * 1_000);
  if (reboot) await lab.host.off();
  else await lab.host.cut();
  if (reboot) past.reboots += 1;
  else past.cuts += 1;
  const told = await clients();
  past.told.push(...told);
  const accepted = told.filter((one) => 'accepted' in one || 'ended' in one).length;
  say(`${n} of ${times}: a ${reboot ? 'reboot' : 'power cut'} after ${after.toFixed(1)} s, ${accepted} jobs handed in`);
  await lab.host.boot();
}

/** Judges the host, and keeps what is wrong with all that may explain it. */
async function judged(lab: Lab, past: Past, before: Look, n: number): Promise<Look> {
  const look = await lab.look();
  const services: Seen[] = [];
  const interruptions = past.cuts + past.reboots;
  const story: Story = { told: past.told, services, interruptions, agents, evidence: lab.evidence(), before };
  const known = new Set(past.violations);
  const found = judge(story, look).filter((one) => !known.has(one));
  past.violations.push(...found);
  const seen = ownJobs(look.jobs, past.told);
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
  return look;
}

function pools(seen: readonly Seen[]): Record<string, PoolCounts> {
  const ended = (pool: string) => seen.filter((one) => one.pool === pool && one.end !== 'open');
  return Object.fromEntries(
    Object.keys(agents).map((pool) => [
      pool,
      { service: 'own', jobs: ended(pool).length, lost: ended(pool).filter(({ end }) => end === 'lost').length },
    ]),
  );
}

await makeHost();
const tree = treeHere();
const date = new Date().toISOString();
console.log(`${times} power cuts and reboots of the tree ${tree} with the seed ${seed}.`);
await using lab = await startLab(config);
say('installed');
const versions = (await lab.host.sh(`docker version --format '{{.Server.Version}} (API {{.Server.APIVersion}})'; uname -r; systemctl --version | sed -n '1s/^systemd //p'`)).split('\n');
const [engine = '', kernel = '', systemd = ''] = versions;
const before = await lab.look();
const past: Past = { cuts: 0, reboots: 0, told: [], violations: [] };
if (before.restless !== null) throw new Error(`The host does not come to rest before its first cut: ${before.restless}`);
for (let n = 1; n <= times; n += 1) {
  await interrupt(lab, past, n);
  if (n < times && !isJudged()) continue;
  const { jobs } = await judged(lab, past, before, n);
  const { cuts, reboots, violations } = past;
  const run: CutsRun = { date, tree, engine, kernel, systemd, seed, cuts, reboots, pools: pools(ownJobs(jobs, past.told)), violations };
  keepRun(run);
}
await lab.host.sh('onejob down');
const last = await lab.host.start(`${'/root/onejob/node_modules/node/bin/node'} /root/lab/test/support/census.ts --state-dir /var/lib/onejob`).ended;
say(`after "onejob down": ${last.stdout.trim().split('\n').at(-1)}`);
process.exitCode = past.violations.length > 0 || last.code !== 0 ? 1 : 0;
