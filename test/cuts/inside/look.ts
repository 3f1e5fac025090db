/**
 * Runs in the host under test: waits until nothing moves any more, and prints what is there, as JSON of `Look`.
 *
 *     node look.ts SECONDS
 */
import { execFileSync } from 'node:child_process';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import type { JobView, StatusView } from '../../../src/contract/schema.ts';
import { databaseName } from '../../../src/store/directory.ts';
import { census } from '../../support/census.ts';
import type { Look } from '../judge.ts';
import { call } from './api.ts';

const stateDir = '/var/lib/onejob';

const said = (command: string, ...words: string[]): string =>
  execFileSync(command, words, { encoding: 'utf8', maxBuffer: 2 ** 28, stdio: ['ignore', 'pipe', 'pipe'] });

/** What still moves, as a sentence's end; null at rest: each slot has its next sandbox, and no job is left. */
async function moves(): Promise<string | null> {
  const [jobs, status] = [await call('GET', '/v1/jobs'), await call('GET', '/v1/status')];
  if (jobs?.status !== 200 || status?.status !== 200) return 'the daemon does not answer';
  const open = jobs.body as JobView[];
  if (open.length > 0) return `${open.length} jobs have not ended, such as ${open[0]?.id} (${open[0]?.state})`;
  for (const { name, slots, backoff } of (status.body as StatusView).pools) {
    if (backoff !== null) return `${name} backs off: ${backoff.reason}`;
    const moving = slots.find(
      ({ standby, agent, leaving }) => standby.state !== 'standby' || !['free', 'idle'].includes(agent.state) || leaving.length > 0,
    );
    if (moving !== undefined)
      return `${moving.name} has a standby ${moving.standby.state}, an agent ${moving.agent.state}, ${moving.leaving.length} leaving`;
  }
  const state = said('systemctl', 'show', '-P', 'ActiveState', 'onejob').trim();
  return state === 'active' ? null : `the service is ${state}`;
}

async function untilRest(seconds: number): Promise<string | null> {
  for (const until = performance.now() + seconds * 1_000; ; await sleep(1_500)) {
    const why = await moves();
    if (why === null || performance.now() > until) return why;
  }
}

function integrity(): string {
  const database = new DatabaseSync(`${stateDir}/${databaseName}`, { readOnly: true, timeout: 5_000 });
  try {
    return database
      .prepare('PRAGMA integrity_check')
      .all()
      .map((row) => Object.values(row).join(' '))
      .join('; ');
  } finally {
    database.close();
  }
}

const restless = await untilRest(Number(process.argv[2]));
const { rows, blind } = await census({ stateDir });
const look: Look = {
  restless,
  jobs: JSON.parse(said('onejob', 'jobs', '--all', '--json', '--limit', '100000')) as JobView[],
  // How many processes a sandbox has is its own matter.
  things: rows.filter(({ kind }) => kind !== 'process').map(({ kind, id, detail }) => ({ kind, id, detail })),
  blind,
  integrity: integrity(),
  restarts: Number(said('systemctl', 'show', '-P', 'NRestarts', 'onejob')),
  disk: said('dmesg')
    .split('\n')
    .filter((line) => /EXT4-fs (error|warning)|I\/O error/.test(line)),
};
console.log(JSON.stringify(look));
