/**
 * Makes the picture of `onejob status` with jobs of Azure Pipelines, as a terminal of 90 columns shows it, from what a daemon could
 * have said: it needs neither a daemon nor a service.
 *
 *     node scripts/picture-azure.ts
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { jobTable } from '../src/cli/jobs.ts';
import { statusLines } from '../src/cli/status.ts';
import { createColors } from '../src/cli/text.ts';
import type { AboutView, JobView, SlotView, StatusView } from '../src/contract/schema.ts';
import { ansiToSvg } from './ansi-svg.ts';

const columns = 90;
const root = join(import.meta.dirname, '..');
const minute = 60_000;

function about(definition: string, build: string, job: string, from: Partial<AboutView>): AboutView {
  const link = 'https://dev.azure.com/acme/vision/_build/results?buildId=4711';
  const unknown = { repository: 'acme/vision', branch: 'main', reason: 'individualCI', link, demands: ['cuda'] };
  return { title: `${definition} #${build} ${job}`, definition, build, ...unknown, ...from };
}
const training = about('train', '20261120.7', 'cuda 13', { branch: 'refs/pull/318/merge', reason: 'pullRequest' });
const nightly = about('nightly', '20261120.1', 'large models', { reason: 'schedule' });

type Agent = Pick<SlotView['agent'], 'state'> & Partial<SlotView['agent']>;
function slot(n: number, agent: Agent, standby: SlotView['standby'] = { state: 'standby', agent: 's', since: minute }): SlotView {
  return {
    key: `lab/${n}`,
    name: `lab-${n}`,
    devices: [`GPU-${n}`.padEnd(8, '0')],
    standby,
    leaving: [],
    note: null,
    held: null,
    agent: { agent: 'a', job: null, about: null, online: null, since: 4 * minute, ...agent },
  };
}

const status: StatusView = {
  version: '0.1.0',
  pid: 2_114,
  owner: 'a1b2c3d4e5f6',
  config: '/etc/onejob/config.yml',
  stateDir: '/var/lib/onejob',
  configChanged: null,
  temporary: false,
  stopping: false,
  runtimeReason: null,
  weaker: null,
  problems: [],
  missing: [],
  quarantined: [],
  pools: [
    {
      name: 'lab',
      service: 'azure',
      runtime: 'docker',
      agents: 4,
      waiting: 2,
      paused: [],
      draining: false,
      leaving: false,
      backoff: null,
      devices: { ready: 4, wanted: 4 },
      slots: [
        slot(1, { state: 'busy', job: 'azure-5120', about: training, since: 7 * minute + 12_000 }),
        slot(2, { state: 'busy', job: 'azure-5118', about: nightly, since: 63 * minute }),
        slot(3, { state: 'idle', online: true, since: 2 * minute }),
        slot(4, { state: 'idle', online: false, since: 3_000 }, { state: 'preparing', agent: 's', since: 1_000 }),
      ],
    },
  ],
};

const now = 100 * minute;
function job(id: string, what: AboutView, more: Partial<JobView>): JobView {
  return {
    id,
    service: 'azure',
    pool: 'lab',
    command: [],
    about: what,
    state: 'running',
    priority: 0,
    attempt: 1,
    agent: 'a',
    result: null,
    reason: null,
    cold: false,
    artifacts: [],
    submittedAt: now - 9 * minute,
    startedAt: null,
    endedAt: null,
    ...more,
  };
}
const jobs = [
  job('azure-5117', about('app-ci', '20261120.6', 'test', {}), {
    state: 'done',
    result: { kind: 'reported', word: 'failed' },
    endedAt: now - 11 * minute,
  }),
  job('azure-5118', nightly, { startedAt: now - 63 * minute }),
  job('azure-5120', training, { startedAt: now - 7 * minute - 12_000 }),
  job('azure-5121', about('app-ci', '20261120.8', 'test', {}), { state: 'waiting', submittedAt: now - 40_000 }),
];

const colors = createColors(true);
const prompt = (command: string) => `\u001b[1;32m$\u001b[0m ${command}`;
const lines = [
  prompt('onejob status'),
  ...statusLines(status, colors, columns),
  '',
  prompt('onejob jobs --all'),
  ...jobTable(jobs, colors, columns, now),
];
const title = 'onejob status and onejob jobs with jobs of Azure Pipelines';
writeFileSync(join(root, 'docs/pictures/azure.svg'), ansiToSvg(lines.join('\n'), { columns, title }));
process.stdout.write(`${lines.join('\n')}\n`);
