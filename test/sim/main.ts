/**
 * Plays scenarios of a host in virtual time: `npm run sim`. Exits 1 when a promise broke, after it has told the story, made it
 * shorter, and saved it in `corpus/`, which is always played first.
 *
 *     npm run sim                                what the gate plays: the corpus, and each scenario with its seeds
 *     npm run sim -- --scenario kills --seed 7   one run, with its story
 *     npm run sim -- --seconds 600               new seeds for ten minutes
 *     npm run sim -- --days 1000                 a host of 18 agents for a thousand days
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type Played, Players } from './players.ts';
import type { Happening, Scenario } from './scenario.ts';
import { scenarios } from './scenarios/index.ts';
import { shrink } from './shrink.ts';
import type { Order } from './worker.ts';

const usage = `npm run sim -- [--scenario NAME]… [--seed N | --seed FROM..TO] [--seconds N] [--days N]
               [--jobs N] [--limit SECONDS] [--json FILE] [--list] [--story] [--no-save] [--no-shrink] [--keep-going]`;

interface Saved {
  readonly scenario: string;
  readonly seed: number;
  /** What broke when it was found. */
  readonly broken: string;
  readonly happenings: readonly Happening[];
}

const corpusFolder = join(import.meta.dirname, 'corpus');

function corpus(): Order[] {
  const files = readdirSync(corpusFolder).filter((name) => name.endsWith('.json'));
  const saved = files.sort().map((name) => JSON.parse(readFileSync(join(corpusFolder, name), 'utf8')) as Saved);
  return saved.map(({ scenario, seed, happenings }) => ({ scenario, seed, happenings }));
}

/** What decides about a change: always the same. */
function gate(chosen: readonly Scenario[]): Order[] {
  return chosen.flatMap(({ name, seeds = 3 }) => Array.from({ length: seeds }, (_, seed) => ({ scenario: name, seed })));
}

const { values } = parseArgs({
  options: {
    scenario: { type: 'string', multiple: true },
    seed: { type: 'string' },
    seconds: { type: 'string' },
    days: { type: 'string' },
    jobs: { type: 'string' },
    limit: { type: 'string', default: '120' },
    json: { type: 'string' },
    list: { type: 'boolean', default: false },
    story: { type: 'boolean', default: false },
    'no-shrink': { type: 'boolean', default: false },
    'no-save': { type: 'boolean', default: false },
    'keep-going': { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

const named = values.scenario ?? (values.days === undefined ? null : ['day']);
const unknown = named?.find((name) => !scenarios.some((one) => one.name === name));
if (unknown !== undefined) {
  console.error(`There is no scenario "${unknown}". There are: ${scenarios.map(({ name }) => name).join(', ')}.`);
  process.exit(2);
}
const chosen = scenarios.filter(({ name }) => named?.includes(name) ?? true);

if (values.help) {
  console.log(usage);
  process.exit(0);
}
if (values.list) {
  for (const { name, about, seeds = 3 } of scenarios)
    console.log(`${name.padEnd(24)} ${String(seeds).padStart(4)} seeds  ${about}`);
  process.exit(0);
}

/** Seeds of `--seed`. */
function seedsOf(text: string): number[] {
  const [from = 0, to = from] = text.split('..').map(Number);
  return Array.from({ length: to - from + 1 }, (_, index) => from + index);
}

const begun = performance.now();
const count = values.jobs === undefined ? Math.min(2, availableParallelism()) : Number(values.jobs);
using players = new Players({ count, limit: Number(values.limit) * 1_000 });
const results: Played[] = [];
const total = { plays: 0, jobs: 0, crashes: 0, outages: 0, virtual: 0, heap: 0, steps: 0 };
let isRed = false;
const isTerminal = process.stderr.isTTY;

function* orders(): Generator<Order> {
  if (values.seed !== undefined) {
    for (const { name } of chosen) for (const seed of seedsOf(values.seed)) yield { scenario: name, seed };
    return;
  }
  if (values.seconds === undefined && values.days === undefined) {
    yield* named === null ? corpus() : [];
    yield* gate(chosen);
    return;
  }
  const base = Math.floor(Math.random() * 2 ** 24) * 64;
  console.log(`Seeds from ${base} on.`);
  const enough = (): boolean =>
    values.days === undefined
      ? performance.now() - begun > Number(values.seconds) * 1_000
      : total.virtual + pending * 86_400_000 >= Number(values.days) * 86_400_000;
  const drawn = chosen.filter(({ eachEffect }) => eachEffect === undefined);
  for (let seed = base; ; seed++)
    for (const { name } of drawn) {
      if (enough()) return;
      yield { scenario: name, seed };
    }
}

let pending = 0;
const source = orders();

async function work(): Promise<void> {
  for (let next = source.next(); next.done !== true; next = source.next()) {
    if (isRed && !values['keep-going']) return;
    pending += 1;
    const played = await players.play({ ...next.value, ...(values.story && { lines: 4_000 }) });
    pending -= 1;
    total.plays += 1;
    for (const [name, count] of Object.entries(played.counts)) if (/^(bkJ|azureJ|j)obs$/.test(name)) total.jobs += count;
    total.crashes += played.counts.crashes ?? 0;
    total.outages += played.counts.outages ?? 0;
    total.steps += played.counts.steps ?? 0;
    total.virtual += played.virtual;
    total.heap = Math.max(total.heap, played.heap);
    results.push(values.json === undefined && !values.story ? { ...played, story: [], happenings: [] } : played);
    if (isTerminal) process.stderr.write(`\r${progress()} `);
    if (values.story) tellStory(played, 4_000);
    if (played.broken !== null) await failed(played);
  }
}

function progress(): string {
  const seconds = (performance.now() - begun) / 1_000;
  const days = total.virtual / 86_400_000;
  return `${total.plays} plays, ${total.jobs} jobs, ${days.toFixed(1)} days in ${seconds.toFixed(0)} s`;
}

async function failed(played: Played): Promise<void> {
  isRed = true;
  console.log(`\n✗ ${played.scenario}, seed ${played.seed}: ${played.broken}`);
  const isShort = played.happenings.length <= 1 || played.order.happenings !== undefined || values['no-shrink'];
  const short = isShort ? played : await shrink(players, played);
  if (short !== played)
    console.log(`${short.happenings.length} of ${played.happenings.length} happenings break it: ${short.broken}`);
  if (!values.story) tellStory(short, 60);
  for (const { at, what, ...more } of short.happenings.slice(0, 40))
    console.log(`  at ${(at / 1_000).toFixed(3)} s: ${what} ${JSON.stringify(more)}`);
  if (!values['no-save'] && played.order.happenings === undefined) save(short);
  console.log(`Again: npm run sim -- --scenario ${played.scenario} --seed ${played.seed} --story`);
}

function tellStory({ story }: Played, lines: number): void {
  for (const [ms, what] of story.slice(-lines)) console.log(`${(ms / 1_000).toFixed(3).padStart(12)}  ${what}`);
}

function save({ scenario, seed, broken, happenings }: Played): void {
  mkdirSync(corpusFolder, { recursive: true });
  const path = join(corpusFolder, `${scenario}-${seed}.json`);
  const saved: Saved = { scenario, seed, broken: (broken ?? '').split('\n')[0] ?? '', happenings };
  writeFileSync(path, `${JSON.stringify(saved, null, 2)}\n`);
  console.log(`Saved in test/sim/corpus/${scenario}-${seed}.json, which is played first from now on.`);
}

await Promise.all(Array.from({ length: count }, work));
const seconds = (performance.now() - begun) / 1_000;
if (values.json !== undefined) writeFileSync(values.json, JSON.stringify(results));
console.log(
  `\n${total.plays} plays, ${isRed ? 'with broken promises' : 'no promise broken'}: ${total.jobs} jobs, ${total.crashes} crashes, ` +
    `${total.outages} outages, ${(total.virtual / 86_400_000).toFixed(1)} days of virtual time in ${seconds.toFixed(1)} s ` +
    `(${(total.jobs / seconds).toFixed(0)} jobs per second, ${(total.steps / seconds / 1_000).toFixed(0)} thousand steps per second, ` +
    `at most ${(total.heap / 2 ** 20).toFixed(0)} MiB of heap).`,
);
process.exitCode = isRed ? 1 : 0;
