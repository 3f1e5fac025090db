/**
 * Says how good the simulator is at finding faults: `npm run sim:mutants`. Applies each patch of `mutants/` to a copy of the tree
 * and plays there what the gate plays, then further seeds, until a promise breaks or the time is up. What breaks counts only when
 * the same play breaks nothing without the patch.
 *
 *     npm run sim:mutants -- --only settle-twice    one of them (also several times)
 *     npm run sim:mutants -- --json results.json    adds what came of these to the file
 *     npm run sim:mutants -- --json results.json --markdown    ends with the tables of docs/testing/mutants.md
 *
 * Those that are open (`# open:`) are hunted by name only, or with `--open`.
 *
 * Exits 1 when fewer than nine tenths of them are found, or one that survives has no reason in its head.
 */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { areas, Copy, type Mutant, readMutants } from './mutant.ts';
import { Players } from './players.ts';
import type { Scenario } from './scenario.ts';
import { scenarios } from './scenarios/index.ts';
import type { Order } from './worker.ts';

/** What came of a mutant. */
interface Result {
  readonly name: string;
  readonly killed: boolean;
  readonly scenario: string | null;
  readonly seed: number | null;
  /** What broke, the first line; null when nothing did. */
  readonly broken: string | null;
  /** Processor time since the start of the simulator. */
  readonly ms: number;
  readonly plays: number;
}

/** Outside systems that are parts of the world only in their own scenarios. */
const services: ReadonlySet<string | null> = new Set(Object.values(areas));
/** Longer scenarios, in hours, would leave no time for others. */
const longest = 100;
/** A play that takes longer spins, in ms of processor time; and one that waits for so long hangs, in ms. */
const hung = 15_000;
const idle = 180_000;
/** Seeds that the gate does not play. */
const furtherSeeds = 1_000;

const { values } = parseArgs({
  options: {
    only: { type: 'string', multiple: true },
    area: { type: 'string', multiple: true },
    jobs: { type: 'string', default: String(Math.min(2, availableParallelism())) },
    limit: { type: 'string', default: '60' },
    json: { type: 'string' },
    open: { type: 'boolean', default: false },
    markdown: { type: 'boolean', default: false },
    'no-baseline': { type: 'boolean', default: false },
  },
});

const all = readMutants();
const unknown = values.only?.find((name) => !all.some((one) => one.name === name));
if (unknown !== undefined) {
  console.error(`There is no mutant "${unknown}". There are: ${all.map(({ name }) => name).join(', ')}.`);
  process.exit(2);
}
const chosen = all.filter(
  ({ name, area, open }) =>
    (values.only?.includes(name) ?? (open === null || values.open)) && (values.area?.includes(area) ?? true),
);
const limit = Number(values.limit) * 1_000;

/** Everything: those scenarios first in which the `outside` system takes part, the first seed of each of them before the second. */
function* orders(outside: string | null, first: string | null): Generator<Order> {
  const folder = join(import.meta.dirname, 'corpus');
  for (const file of readdirSync(folder).sort())
    if (file.endsWith('.json')) yield JSON.parse(readFileSync(join(folder, file), 'utf8')) as Order;
  const isNear = ({ with: outsides = [] }: Scenario): boolean =>
    outside === null ? !outsides.some((one) => services.has(one)) : outsides.includes(outside);
  const short = scenarios.filter(({ hours }) => hours < longest);
  const gate = short.flatMap((scenario) =>
    Array.from({ length: scenario.seeds ?? 3 }, (_, seed) => {
      const round = scenario.eachEffect === undefined ? seed : Math.floor(seed / 6);
      const begin = scenario.name === first ? -1e6 : isNear(scenario) ? 0 : 1e6;
      const turn = begin + round + (scenario.hours < 24 ? 0 : 2) + scenario.hours / 1e3;
      return { scenario: scenario.name, seed, turn };
    }),
  );
  for (const { scenario, seed } of gate.sort((a, b) => a.turn - b.turn)) yield { scenario, seed };
  const more = short.filter(({ eachEffect, hours }) => eachEffect === undefined && hours < 24);
  const near = more.filter(isNear);
  for (let seed = furtherSeeds; more.length > 0; seed++)
    for (const { name } of near.length > 0 ? near : more) yield { scenario: name, seed };
}

type Attempt = Omit<Result, 'name' | 'killed'>;

/** Processor time of a process so far, ms: other work on the machine does not count. */
function busy(pid: number): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ');
    return (Number(fields[11]) + Number(fields[12])) * 10;
  } catch {
    return 0;
  }
}

/** Plays until something breaks that `counts`, or the time is up. */
async function attempt(
  simulator: string,
  of: Pick<Mutant, 'area' | 'foundBy'> | null,
  counts: (order: Order) => Promise<boolean>,
): Promise<Attempt> {
  using players = new Players({ count: 1, limit: 600_000, folder: simulator });
  const spent = (): number => players.processes.reduce((sum, pid) => sum + busy(pid), 0);
  let plays = 0;
  for (const order of orders(of === null ? null : areas[of.area], of?.foundBy ?? null)) {
    const [begun, wall] = [spent(), performance.now()];
    const over = Promise.withResolvers<string | null>();
    const timer = setInterval(() => {
      if (spent() - begun > hung || performance.now() - wall > idle) over.resolve('hung: it spins, or waits for ever');
      else if (spent() > limit) over.resolve(null);
    }, 100);
    const came = await Promise.race([players.play(order), over.promise]).finally(() => clearInterval(timer));
    if (came === null) break;
    plays += 1;
    const ms = spent();
    const played = typeof came === 'string' ? { order, broken: came } : came;
    if (played.broken !== null && (await counts(order)))
      return { scenario: order.scenario, seed: order.seed, broken: (played.broken.split('\n')[0] ?? '').slice(0, 200), ms, plays };
    if (typeof came === 'string') break;
  }
  return { scenario: null, seed: null, broken: null, ms: spent(), plays };
}

const cache = mkdtempSync(join(tmpdir(), 'onejob-mutants-cache-'));
process.env.NODE_COMPILE_CACHE = cache;
using unmutated = new Copy();
using witnesses = new Players({ count: 1, limit: 4 * hung, folder: unmutated.simulator });
/** Tests that are green in the unmutated tree. */
const green = new Set<string>();
const wholesome = new Map<string, Promise<boolean>>();

/** Whether the same play breaks nothing in the unmutated tree. */
function isWhole(order: Order): Promise<boolean> {
  const key = JSON.stringify(order);
  const known = wholesome.get(key) ?? witnesses.play(order).then(({ broken }) => broken === null);
  wholesome.set(key, known);
  return known;
}

/** What the simulator does not see, a test of one file does. */
function byTest(name: string, test: string, copy: Copy): Result {
  const begun = performance.now();
  if (!green.has(test) && unmutated.redOf(test) !== null) throw new Error(`${test} is red without a mutant, so it says nothing`);
  green.add(test);
  const broken = copy.redOf(test);
  return { name, killed: broken !== null, scenario: test, seed: null, broken, ms: performance.now() - begun, plays: 1 };
}

async function tryOne(mutant: Mutant, copy: Copy): Promise<Result> {
  copy.apply(mutant);
  try {
    if (mutant.test !== null) return byTest(mutant.name, mutant.test, copy);
    const came = await attempt(copy.simulator, mutant, isWhole);
    return { name: mutant.name, killed: came.broken !== null, ...came };
  } catch (error) {
    throw new Error(`mutants/${mutant.name}.patch makes a tree in which nothing can be played`, { cause: error });
  } finally {
    copy.restore();
  }
}

function tell({ name, killed, scenario, seed, broken, ms, plays }: Result): void {
  const time = `${(ms / 1_000).toFixed(1)} s`.padStart(7);
  console.log(
    `${killed ? '✓' : '✗'} ${time}  ${name.padEnd(32)} ${killed ? `${scenario} ${seed ?? ''}: ${broken}` : `alive after ${plays} plays`}`,
  );
}

let isRed = false;
try {
  if (!values['no-baseline']) {
    const { broken, scenario, seed, plays, ms } = await attempt(unmutated.simulator, null, async () => true);
    if (broken !== null) {
      throw new Error(`The tree itself is not sound, so no mutant says anything: ${scenario}, seed ${seed}: ${broken}`);
    }
    console.log(`Without a fault no promise breaks: ${plays} plays in ${(ms / 1_000).toFixed(1)} s.`);
  }
  const results: Result[] = [];
  const queue = [...chosen];
  await Promise.all(
    Array.from({ length: Number(values.jobs) }, async () => {
      using copy = new Copy();
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
        const result = await tryOne(next, copy);
        results.push(result);
        tell(result);
        if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(merged(values.json, results), null, 1)}\n`);
      }
    }),
  );
  const whole = values.json === undefined ? results : merged(values.json, results);
  const dead = whole.filter(({ killed }) => killed).length;
  console.log(`\n${dead} of ${whole.length} faults are found within ${limit / 1_000} s of processor time each.`);
  const unexplained = whole.filter(({ name, killed }) => !killed && all.find((one) => one.name === name)?.survives === null);
  for (const { name } of unexplained) console.log(`${name} survives, and its head does not say why.`);
  isRed = dead < 0.9 * whole.length || unexplained.length > 0;
  if (values.markdown) console.log(`\n${markdown(whole)}`);
} finally {
  rmSync(cache, { recursive: true, force: true });
}
process.exitCode = isRed ? 1 : 0;

/** What the file says of mutants that there still are, with what is known now in its place. */
function merged(path: string, results: readonly Result[]): Result[] {
  const before = existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as Result[]) : [];
  const known = new Map([...before, ...results].map((one) => [one.name, one]));
  return all.flatMap(({ name }) => known.get(name) ?? []);
}

function markdown(results: readonly Result[]): string {
  const dead = results.filter(({ killed }) => killed);
  const times = dead.map(({ ms }) => ms).sort((a, b) => a - b);
  const seconds = (ms: number | undefined): string => `${((ms ?? 0) / 1_000).toFixed(1)} s`;
  const rows = results.flatMap(({ name, killed, scenario, seed, broken, ms }) => {
    const mutant = all.find((one) => one.name === name);
    if (mutant === undefined) return [];
    const promise = mutant.test !== null ? mutant.promise : (/^(S\d+(?:\/S\d+)?)/.exec(broken ?? '')?.[1] ?? 'no end, or an error');
    const by = !killed ? 'survives' : seed === null ? `\`${scenario}\`` : `${scenario}, seed ${seed}`;
    return [`| ${mutant.area} | \`${name}\` | ${mutant.fault} | ${by} | ${killed ? promise : ''} | ${killed ? seconds(ms) : ''} |`];
  });
  const alive = results.filter(({ killed }) => !killed);
  const open = all.filter((one) => one.open !== null && !results.some(({ name }) => name === one.name)).length;
  const [cpu] = cpus();
  const machine = `${availableParallelism()} cores (${cpu?.model.trim()}), ${Math.round(totalmem() / 2 ** 30)} GiB, Node ${process.versions.node}`;
  return [
    `${dead.length} of ${results.length} faults are found within ${limit / 1_000} s of processor time each (${((100 * dead.length) / results.length).toFixed(0)} %), ` +
      `half of them within ${seconds(times[Math.floor(times.length / 2)])}, the slowest after ${seconds(times.at(-1))}. Measured on ${machine}.`,
    '',
    '| Area | Mutant | Fault | Found by | Promise | After |',
    '|---|---|---|---|---|---|',
    ...rows.sort(),
    ...(alive.length === 0 ? [] : ['', 'Those that survive:', '']),
    ...alive.map(({ name }) => `- \`${name}\`: ${all.find((one) => one.name === name)?.survives ?? 'nobody knows why.'}`),
    ...(open === 0 ? [] : ['', `Another ${open} are written, and have not been hunted to the end (\`--open\`).`]),
  ].join('\n');
}
