import { beforeEach, expect, it } from 'vitest';
import type { Log } from '../../base/log.ts';
import { jobRequest } from '../../contract/job.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { applyCancel, applyChange, type Job, type JobChange, jobView, newJob } from './job.ts';
import { JobIndex } from './job-index.ts';
import { Teller, tellLost } from './tell.ts';

let index: JobIndex;
let teller: Teller;
let heard: string[];
let events: CiEvent[];
let loop: AbortController;
const never = new AbortController().signal;

beforeEach(() => {
  index = new JobIndex();
  heard = [];
  events = [];
  loop = new AbortController();
  const over = ({ id }: Job): void => {
    heard.push(`${id} over`);
    index.forget(id);
  };
  teller = new Teller({ index, view: (job) => jobView(job, () => null, null), over });
  teller.observe(['p'], (event) => events.push(event), loop.signal);
  teller.follow(({ id, state }) => heard.push(`${id} ${state}`));
});

let seq = 0;
function submit(id: string): void {
  const request = { ...jobRequest.parse({ command: ['true'] }), pool: 'p', array: null };
  index.put({ ...newJob(id, request, false, 0), seq: ++seq });
}

function change(id: string, ...changes: JobChange['change'][]): void {
  for (const each of changes) {
    const job = index.get(id);
    if (job === null) throw new RangeError(`no job ${id}`);
    const result = { kind: 'code', code: 0 } as const;
    index.put(applyChange(job, { change: each, job: id, agent: 'a', result, failure: null } as JobChange, 0));
  }
}

it('announces a change once it is committed, and never one that is rolled back', () => {
  submit('j');
  expect([heard, events]).toEqual([[], []]);
  teller.committed();
  expect(heard).toEqual(['j queued']);
  expect(events).toEqual([{ kind: 'waiting', pool: 'p' }]);
  change('j', 'assigned');
  index.rollback();
  teller.committed();
  expect(heard).toEqual(['j queued']);
});

it('announces an end only once it is on disk: first to followers, then to waiters', async () => {
  submit('j');
  change('j', 'assigned', 'started');
  teller.committed();
  const waiting = teller.wait('j', never).then(({ id, state }) => heard.push(`${id} waited for until ${state}`));
  change('j', 'ended', 'settled');
  teller.committed();
  expect(heard).toEqual(['j running']);
  const synced = teller.syncing();
  expect(heard).toEqual(['j running']);
  synced();
  await waiting;
  expect(heard).toEqual(['j running', 'j done', 'j over', 'j waited for until done']);
});

it('leaves what has changed during a sync to the next one', () => {
  submit('j');
  change('j', 'assigned', 'started', 'ended');
  teller.committed();
  const first = teller.syncing();
  change('j', 'settled');
  teller.committed();
  first();
  expect(heard).toEqual([]);
  const second = teller.syncing();
  second();
  expect(heard).toEqual(['j done', 'j over']);
  teller.syncing()();
  expect(heard).toHaveLength(2);
});

it('asks for the end of a job that was cancelled once', () => {
  submit('j');
  change('j', 'assigned');
  const job = index.get('j');
  if (job !== null) index.put(applyCancel(job, 0));
  teller.committed();
  const cancel = { kind: 'cancel', job: 'j', agent: 'a', grace: null } as const;
  expect(events).toEqual([cancel]);
  change('j', 'started');
  teller.committed();
  expect(events).toEqual([cancel]);
});

it('brings late observers up to date, and tells nothing to those who left', () => {
  submit('waits');
  submit('ends');
  change('ends', 'assigned');
  const job = index.get('ends');
  if (job !== null) index.put(applyCancel(job, 0));
  teller.committed();
  loop.abort();
  const late: CiEvent[] = [];
  teller.observe(['p', 'other'], (event) => late.push(event), never);
  expect(late).toEqual([
    { kind: 'waiting', pool: 'p' },
    { kind: 'cancel', job: 'ends', agent: 'a', grace: null },
  ]);
  const before = events.length;
  submit('more');
  teller.committed();
  expect([events.length, late.length]).toEqual([before, 3]);
});

it('says in the log why a job was lost, once it is over', () => {
  const said: unknown[] = [];
  const log = { warn: (event: string, about: object) => said.push([event, about]) } as unknown as Log;
  submit('j');
  teller.follow((job) => tellLost(job, log));
  for (const each of ['reserved', 'assigned', 'started'] as const) change('j', each);
  const lost = { change: 'ended', job: 'j', agent: 'a', result: { kind: 'lost', reason: 'its sandbox was removed' } } as const;
  index.put(applyChange(index.get('j') as Job, lost, 0));
  teller.committed();
  teller.syncing()();
  expect(said).toEqual([]);
  change('j', 'settled');
  teller.committed();
  teller.syncing()();
  expect(said).toEqual([['job lost', { job: 'j', pool: 'p', agent: 'a', reason: 'its sandbox was removed' }]]);
});
