/**
 * Measures, and writes `docs/performance.md` and `bench/results.json`.
 *
 *     npm run bench [-- [--quick] [FIGURE…]]       figures: see figures.ts; without names all of them
 *
 * `--quick` runs a few rounds of each and writes nothing: to see that the bench works.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { figures } from './figures.ts';
import { describeMachine } from './machine.ts';
import { earlier, type Results, write } from './report.ts';

const { values, positionals } = parseArgs({ allowPositionals: true, options: { quick: { type: 'boolean', default: false } } });
const wanted = positionals.length === 0 ? Object.keys(figures) : positionals;
const unknown = wanted.filter((name) => figures[name] === undefined);
if (unknown.length > 0) {
  console.error(`No figure ${unknown.join(', ')}; there are ${Object.keys(figures).join(', ')}.`);
  process.exit(2);
}

const machine = await describeMachine();
const measured: Record<string, Results['figures'][string]> = { ...earlier(machine) };
const dir = mkdtempSync(join(tmpdir(), 'ojb-'));
let failed = false;
try {
  for (const name of wanted) {
    const began = performance.now();
    console.log(`\n${name} …`);
    try {
      const outcome = await figures[name]?.({ quick: values.quick, dir });
      if (outcome === undefined) continue;
      measured[name] = { ...outcome, measuredOn: new Date().toISOString().slice(0, 10) };
      for (const one of outcome.lines) {
        console.log(
          `  ${one.figure}: ${one.measured}${one.reach === '' ? '' : ` (${one.reach}${one.reached === true ? '' : ': MISSED'})`}`,
        );
      }
    } catch (error) {
      failed = true;
      console.error(`  not measured: ${error instanceof Error ? error.message : String(error)}`);
    }
    console.log(`  took ${((performance.now() - began) / 1000).toFixed(0)} s`);
  }
} finally {
  rmSync(dir, { recursive: true, force: true });
}
if (!values.quick) write({ machine, figures: measured });
// Stand-ins hold timers for the ends of their machines, hours away.
process.exit(failed ? 1 : 0);
