/** What a sandbox is, by its folder and by what Slurm says. */
import { describe, expect, it } from 'vitest';
import { parseAccount, parseJobs, type SlurmJob } from './commands.ts';
import { commentOf, type FolderLook, isOf, jobOf, jobsOf, patience, phaseOf, saidIn, stateOf, waitText } from './states.ts';

const nothing: FolderLook = { exitCode: null, oom: false, where: null, started: false, again: false, said: '', unfit: null };
const where = { job: '7', place: 'n1', devices: '0' };
const begun: FolderLook = { ...nothing, where, started: true };
const job = (state: string, reason = 'None'): SlurmJob => ({
  id: '7',
  name: 'oj-a',
  state,
  reason,
  node: state === 'PENDING' ? '' : 'n1',
  comment: 'onejob:me',
});
const lost = (reason: string) => ({ kind: 'exited', exit: { kind: 'lost', reason } });

describe('the state of a sandbox', () => {
  it.each([
    ['waits in the queue', nothing, job('PENDING', 'Resources'), { kind: 'created' }],
    ['has a node, and its script has not begun', nothing, job('RUNNING'), { kind: 'created' }],
    ['is at its gate', begun, job('RUNNING'), { kind: 'running' }],
    [
      'has ended, and Slurm does not know yet',
      { ...begun, exitCode: 3 },
      job('RUNNING'),
      { kind: 'exited', exit: { kind: 'code', code: 3 } },
    ],
    ['has ended, and Slurm has forgotten it', { ...begun, exitCode: 0 }, null, { kind: 'exited', exit: { kind: 'code', code: 0 } }],
    ['went over its memory', begun, job('OUT_OF_MEMORY'), { kind: 'exited', exit: { kind: 'oom' } }],
    [
      'went over its memory, and Slurm does not know yet',
      { ...begun, exitCode: 137, oom: true },
      job('RUNNING'),
      { kind: 'exited', exit: { kind: 'oom' } },
    ],
    ['was killed', begun, job('FAILED', 'JobLaunchFailure'), { kind: 'exited', exit: { kind: 'code', code: 137 } }],
    ['went over its time', begun, job('TIMEOUT'), lost('Slurm ended it on node n1: its time limit was over')],
    ['made room for another', begun, job('PREEMPTED'), lost('Slurm ended it on node n1: another job took its place')],
    ['lost its node', begun, job('NODE_FAIL'), lost('Slurm ended it on node n1: the node failed')],
    [
      'was cancelled by an administrator',
      begun,
      job('CANCELLED'),
      lost('Slurm ended it on node n1: somebody cancelled it with scancel'),
    ],
    [
      'is back in the queue, although it has run',
      begun,
      job('PENDING'),
      lost('Slurm put it back into its queue after it had begun on node n1'),
    ],
    [
      'was started twice',
      { ...begun, again: true },
      job('FAILED'),
      lost('Slurm started it a second time on node n1, which onejob refused'),
    ],
    ['was forgotten after it had begun', begun, null, lost('Slurm no longer knows it on node n1, and it left no exit code')],
    ['was forgotten before it had begun', nothing, null, { kind: 'created' }],
    [
      'could not begin on its node',
      { ...nothing, started: true, said: 'sh: module: not found' },
      job('FAILED', 'NonZeroExitCode'),
      lost('it could not begin on node n1: sh: module: not found'),
    ],
    [
      'could not begin, and nobody knows why',
      { ...nothing, started: true },
      job('FAILED', 'NonZeroExitCode'),
      lost('it ended on node n1 without an exit code, and Slurm says FAILED (NonZeroExitCode)'),
    ],
    [
      'did not begin on a node with a bad card',
      { ...nothing, started: true, unfit: { node: 'n1', why: 'nvidia-smi fails: No devices' } },
      job('FAILED', 'NonZeroExitCode'),
      lost('node n1 is not fit for it: nvidia-smi fails: No devices'),
    ],
    ['ended without a word', nothing, job('COMPLETED'), lost('it ended on node n1 without an exit code, and Slurm says COMPLETED')],
  ])('%s', (_, look, seen, expected) => {
    expect(stateOf(look, { job: seen, since: patience, afterStart: true })).toEqual(expected);
  });

  it('may still come to its end where Slurm has put it back into its queue, or has started it twice', () => {
    const soon = { since: patience - 1, afterStart: true };
    expect(stateOf(begun, { job: job('PENDING'), ...soon })).toEqual({ kind: 'running' });
    expect(stateOf({ ...begun, again: true }, { job: job('FAILED'), ...soon })).toBeNull();
    expect(stateOf({ ...begun, exitCode: 0 }, { job: job('PENDING'), ...soon })).toMatchObject({
      kind: 'exited',
      exit: { code: 0 },
    });
  });

  it('is unknown for as long as a shared file system or the controller may lag', () => {
    const seenAs = (job: SlurmJob | null, since: number) => stateOf(begun, { job, since, afterStart: true });
    expect(seenAs(null, patience - 1)).toBeNull();
    expect(seenAs(job('COMPLETED'), patience - 1)).toBeNull();
    expect(seenAs(job('FAILED'), 0)).toBeNull();
    expect(seenAs(job('COMPLETING'), patience)).toEqual({ kind: 'running' });
    // Slurm was asked before it began.
    expect(stateOf(begun, { job: job('PENDING'), since: patience, afterStart: false })).toEqual({ kind: 'running' });
  });
});

describe('what only accounting remembers', () => {
  const told = (text: string) => stateOf(begun, { job: parseAccount('oj-a', text), since: patience, afterStart: true });

  it.each([
    ['7|CANCELLED by 1000|0:0|n1\n', 'Slurm ended it on node n1: somebody cancelled it with scancel'],
    ['7|NODE_FAIL|1:0|n1\n', 'Slurm ended it on node n1: the node failed'],
    // What it left is gone, so that it passed is not believed.
    ['7|COMPLETED|0:0|n1\n', "it left no exit code on node n1, and Slurm's accounting says COMPLETED (exit code 0)"],
    ['7|FAILED|0:9|n1\n', "it left no exit code on node n1, and Slurm's accounting says FAILED (signal 9)"],
    ['7|REQUEUED|0:0|n1\n7|TIMEOUT|0:0|n1\n', 'Slurm ended it on node n1: its time limit was over'],
    ['7|RUNNING|0:0|n1\n', 'Slurm no longer knows it on node n1, and it left no exit code'],
    ['', 'Slurm no longer knows it on node n1, and it left no exit code'],
  ])('says why an agent was lost: %s', (text, reason) => {
    expect(told(text)).toEqual(lost(reason));
  });

  it('says that its memory was used up', () => {
    expect(told('7|OUT_OF_MEMORY|0:125|n1\n')).toEqual({ kind: 'exited', exit: { kind: 'oom' } });
  });
});

describe('the jobs of an agent', () => {
  it('are found by name, and one that is not over counts', () => {
    const jobs = parseJobs(
      '9|FAILED|NonZeroExitCode|n1|oj-a|onejob:me\n12|PENDING|Dependency||oj-a|onejob:me\n13|RUNNING|None|n2|other|a|b\n',
    );
    expect(jobs).toHaveLength(3);
    expect(jobs[2]).toEqual({ id: '13', state: 'RUNNING', reason: 'None', node: 'n2', name: 'other', comment: 'a|b' });
    expect(jobOf('a', jobsOf(jobs))?.id).toBe('12');
    expect(jobOf('b', jobsOf(jobs))).toBeNull();
    expect(jobOf('a', jobsOf(jobs.slice(0, 1)))?.id).toBe('9');
    expect([...jobsOf(jobs).keys()]).toEqual(['a']);
  });

  it('wait in every state in which Slurm may still start them', () => {
    // The last one: a reservation that is over held it (seen with 22.05 and 24.11).
    for (const state of ['PENDING', 'CONFIGURING', 'REQUEUED', 'RESV_DEL_HOLD']) expect(phaseOf({ state }), state).toBe('waiting');
    expect(waitText(job('RESV_DEL_HOLD', 'Reservation r was deleted'))).toBe('waits (Reservation r was deleted)');
  });

  it('are over in every state that Slurm may add', () => {
    expect(['PENDING', 'RUNNING', 'COMPLETING', 'COMPLETED', 'LAUNCH_FAILED'].map((state) => phaseOf({ state }))).toEqual([
      'waiting',
      'running',
      'completing',
      'ended',
      'ended',
    ]);
  });

  it('are of an owner by their comment, which may also say why they could not begin', () => {
    const comment = `${commentOf('me')} /data does not exist | there`;
    expect([isOf('me', { comment }), isOf('me', { comment: 'onejob:me' }), isOf('m', { comment })]).toEqual([true, true, false]);
    expect([saidIn('me', { comment }), saidIn('me', { comment: 'onejob:me' }), saidIn('me', { comment: 'of a site' })]).toEqual([
      '/data does not exist | there',
      '',
      '',
    ]);
  });

  it('say why they wait', () => {
    expect(waitText(job('PENDING', 'Resources'))).toBe('waits for resources');
    expect(waitText(job('PENDING', 'PartitionConfig'))).toBe('asks for more than a node of its partition gives (PartitionConfig)');
    expect(waitText(job('PENDING', 'ReqNodeNotAvail, UnavailableNodes:n[1-2]'))).toBe(
      'waits for nodes that are down or reserved (ReqNodeNotAvail, UnavailableNodes:n[1-2])',
    );
    expect(waitText(job('PENDING', 'QOSMaxGRESPerUser'))).toBe('waits (QOSMaxGRESPerUser)');
  });
});
