import { expect, test } from 'vitest';
import { serviceJob } from '../../../test/support/service-job.ts';
import { type AgentLane, emptySlot, type Slot } from '../../core/slot.ts';
import { tellProgress } from './slot-history.ts';

const slot = (agent: AgentLane): Slot => ({ ...emptySlot({ key: 'ci/1', runtime: 'docker', grace: 0 }), agent });
const idle = { kind: 'idle', agent: 'a', fingerprint: 'f', online: false, since: 0 } as const;
const busy = { kind: 'busy', agent: 'a', job: 'azure-7', since: 0, due: null } as const;

test('logs when an agent is online, which job it began, and that it ended, once each', () => {
  const said: string[] = [];
  const log = { info: (text: string, more?: object) => said.push(`${text} ${JSON.stringify(more)}`), warn() {}, error() {} };
  const lanes: AgentLane[] = [
    { kind: 'free' },
    idle,
    { ...idle, online: true },
    { ...idle, online: true },
    busy,
    busy,
    { kind: 'proving', agent: 'a', since: 0 },
    { kind: 'free' },
  ];
  for (const [at, lane] of lanes.slice(1).entries())
    tellProgress(slot(lanes[at] ?? lane), slot(lane), log, (id) => serviceJob(id, { title: 'app-ci #7 build' }));
  expect(said).toEqual([
    'agent online {"slot":"ci/1","agent":"a"}',
    'job began {"slot":"ci/1","agent":"a","job":"app-ci #7 build"}',
    'agent ended {"slot":"ci/1","agent":"a","job":"app-ci #7 build"}',
  ]);
});

test('an agent that was told to end is logged as ended, but not one whose script never began', () => {
  const said: string[] = [];
  const log = { info: (text: string, more?: object) => said.push(`${text} ${JSON.stringify(more)}`), warn() {}, error() {} };
  const stopping = {
    kind: 'ending',
    signal: 'TERM',
    agent: 'a',
    job: 'j',
    why: 'renewal',
    released: true,
    failure: null,
    due: 0,
  } as const;
  const tell = (was: AgentLane, is: AgentLane) => tellProgress(slot(was), slot(is), log, () => serviceJob('j', { title: 'make' }));
  tell(busy, stopping);
  tell(stopping, { kind: 'free' });
  tell({ ...stopping, released: false }, { kind: 'free' });
  expect(said).toEqual(['agent ended {"slot":"ci/1","agent":"a","job":"make"}']);
});
