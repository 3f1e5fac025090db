/** Rows about power cuts for docs/tried-with.md, from what runs of `npm run test:cuts` have written down. */
import type { CutsRun } from '../test/cuts/results.ts';

/** One for each set-up: a line of Markdown, its cells as in `cutsHead`. */
export function cutsRows(runs: readonly CutsRun[]): string[] {
  const setups = Map.groupBy(runs, ({ engine, kernel, systemd }) => [engine, kernel, systemd].join(' | '));
  return [...setups].map(([setup, of]) => {
    const sum = (count: (run: CutsRun) => number): number => of.reduce((total, run) => total + count(run), 0);
    const [cuts, reboots, wrong] = [
      sum((run) => run.cuts),
      sum((run) => run.reboots),
      sum((run) => (run.fixed === undefined ? run.violations.length : 0)),
    ];
    const fixed = sum((run) => (run.fixed === undefined ? 0 : run.violations.length));
    const last = of.map(({ date }) => date.slice(0, 10)).sort();
    return `| ${setup} | ${cuts} | ${reboots} | ${jobsOf(of)} | ${wrong === 0 ? 'none' : wrong}${fixed === 0 ? '' : `; ${fixed} found and fixed`} | ${last.at(-1)} |`;
  });
}

export const cutsHead = `| Engine | Kernel | systemd | Power cuts | Reboots | Jobs that ended, of them lost | Broken promises | Last run |
| --- | --- | --- | --- | --- | --- | --- | --- |`;

/** Of each pool, the jobs of all runs. */
function jobsOf(runs: readonly CutsRun[]): string {
  const pools = new Map<string, { service: string; jobs: number; lost: number }>();
  for (const { pools: found } of runs)
    for (const [pool, { service, jobs, lost }] of Object.entries(found)) {
      const sum = pools.get(pool) ?? { service, jobs: 0, lost: 0 };
      pools.set(pool, { service, jobs: sum.jobs + jobs, lost: sum.lost + lost });
    }
  return [...pools].map(([pool, { service, jobs, lost }]) => `${pool} (${service}): ${jobs}, ${lost}`).join('<br>');
}
