/**
 * Looks for what nobody thought of: `npm run test:soak` plays new seeds of every scenario for an hour, the last quarter of it only
 * those in which most happens. It says from which seed on; what breaks is made shorter and saved in `test/sim/corpus/`, where the
 * gate finds it. `-- --seconds 600` takes ten minutes.
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { scenarios } from './sim/scenarios/index.ts';

const { values } = parseArgs({ options: { seconds: { type: 'string', default: '3600' } } });
const seconds = Number(values.seconds);
if (!(seconds > 0)) {
  console.error(`--seconds is a number, not ${values.seconds}.`);
  process.exit(2);
}

const size = ({ happens }: (typeof scenarios)[number]): number => happens.reduce((sum, { count }) => sum + count, 0);
const drawn = scenarios.filter(({ eachEffect }) => eachEffect === undefined);
const largest = drawn.toSorted((one, other) => size(other) - size(one)).slice(0, 4);

/** Plays for a while; true when no promise broke. */
function play(title: string, share: number, names: readonly string[]): boolean {
  console.log(`\n━━━ ${title}`);
  const only = names.flatMap((name) => ['--scenario', name]);
  const args = [join(import.meta.dirname, 'sim/main.ts'), ...only, '--seconds', String(seconds * share), '--keep-going'];
  return spawnSync(process.execPath, args, { stdio: 'inherit' }).status === 0;
}

const names = largest.map(({ name }) => name);
const all = play('every scenario', 0.75, []);
const large = play(`the largest: ${names.join(', ')}`, 0.25, names);
process.exitCode = all && large ? 0 : 1;
