/** The files of failed jobs, kept for people: what the commands show, and what is left. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type Child, startChild } from '../support/child.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { ctrlC } from '../support/terminal.ts';

const config = 'pools: { default: { agents: 1, runtime: process, hold_failed: 30m } }';
const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');

/** Runs a job that fails, and returns its id. */
async function failing(here: Home, script = 'echo data >out; exit 3'): Promise<string> {
  const { code, stderr } = await here.run('--no-workspace', '--env', 'SECRET=hunter2', '--', 'sh', '-c', script).ended;
  expect(code, stderr).not.toBe(0);
  expect(stderr).toMatch(/the files of job \w+ are held for 30m/);
  return (await here.api.jobs({ all: true, pool: null })).at(-1)?.id ?? '';
}

/** `onejob shell JOB` on a terminal of its own, whose settings are compared before and after. */
function onTerminal(here: Home, job: string): Child {
  const command = `stty cols 91 rows 33; before=$(stty -g); '${program}' shell ${job}; echo "code=$?"; [ "$before" = "$(stty -g)" ] && echo same as before`;
  return startChild('script', ['--quiet', '--return', '--flush', '--command', command, '/dev/null'], {
    cwd: here.cwd,
    env: { ...here.env, TERM: 'xterm', SHELL: '/bin/sh' },
  });
}

test('a failed job is held, can be looked at, and is removed', async () => {
  await using here = await onejob({ config });
  const daemon = await here.up();
  const job = await failing(here);
  expect((await here.cli(['jobs', job]).ended).stdout).toContain(`onejob shell ${job}`);
  expect((await here.api.job(job)).held?.until).toBeGreaterThan(0);
  expect((await here.cli(['complete', 'held-jobs']).ended).stdout).toBe(`${job}\n`);
  expect((await here.cli(['status']).ended).stdout).toContain('1 failed job held');
  expect((await here.cli(['doctor']).ended).stdout).toContain('One failed job is held');
  const seen = await here.cli(['shell', job.slice(0, 6), '--', 'sh', '-c', 'cat out; env; exit 4']).ended;
  expect(seen.code).toBe(4);
  expect(seen.stdout).toMatch(/^data\n/);
  expect(seen.stdout).toContain(`ONEJOB_JOB_ID=${job}`);
  expect(seen.stdout).not.toContain('hunter2');
  // The slot did not wait.
  expect((await here.run('--no-workspace', '--', 'echo', 'next').ended).stdout).toBe('next\n');
  expect((await here.cli(['unhold', job]).ended).stdout).toBe(`The files of job ${job} were removed.\n`);
  expect((await here.api.job(job)).held).toBeUndefined();
  await daemon.stop();
  expect((await here.census()).left).toEqual([]);
});

test('what was not held is refused', async () => {
  await using here = await onejob({ config });
  await here.up();
  await here.run('--no-workspace', '--', 'true').ended;
  const [passed] = await here.api.jobs({ all: true, pool: null });
  for (const [job, why] of [
    [passed?.id ?? '', /E_NOT_HELD|is not held/],
    ['nothing', /There is no job nothing/],
  ] as const) {
    const shell = await here.cli(['shell', job, '--', 'true']).ended;
    expect(shell).toMatchObject({ code: 125, stderr: expect.stringMatching(why) });
    expect(await here.cli(['unhold', job]).ended).toMatchObject({ code: 1, stderr: expect.stringMatching(why) });
  }
  expect(await here.cli(['shell', passed?.id ?? '', '--terminal', '--', 'true']).ended).toMatchObject({ code: 2 });
});

test('a hold outlives its daemon with "down --leave", and ends with "down"', async () => {
  await using here = await onejob({ config });
  await here.up();
  const job = await failing(here);
  expect((await here.cli(['down', '--leave']).ended).code).toBe(0);
  await here.up();
  expect((await here.cli(['shell', job, '--', 'cat', 'out']).ended).stdout).toBe('data\n');
  expect((await here.cli(['down']).ended).code).toBe(0);
  expect((await here.census()).left).toEqual([]);
  await here.up();
  expect((await here.api.job(job)).held).toBeUndefined();
});

test('a terminal passes Ctrl-C to what runs in it, and is left as it was', async () => {
  await using here = await onejob({ config });
  await here.up();
  const job = await failing(here);
  const shell = onTerminal(here, job);
  shell.typeMore('stty size; cat out; sleep 600\n');
  await shell.says(/33 91[\s\S]*data/);
  shell.typeMore(ctrlC);
  shell.typeMore('echo inter""rupted; exit 6\n');
  await shell.says(/interrupted/);
  await shell.says(/code=6\s+same as before/);
  shell.type('');
  await shell.ended;
});

test('a daemon that dies ends the shell, says so, and leaves the terminal as it was', async () => {
  await using here = await onejob({ config });
  const daemon = await here.up();
  const job = await failing(here);
  const shell = onTerminal(here, job);
  shell.typeMore('echo re""ady; sleep 600\n');
  await shell.says(/ready/);
  await daemon.kill();
  await shell.says(/because the daemon has gone[\s\S]*code=125\s+same as before/);
  shell.type('');
  await shell.ended;
  await here.up();
  expect((await here.cli(['shell', job, '--', 'cat', 'out']).ended).stdout).toBe('data\n');
});

test('the end of a hold ends its shells', async () => {
  await using here = await onejob({ config });
  await here.up();
  const job = await failing(here);
  const shell = here.cli(['shell', job, '--', 'sh', '-c', 'echo up; sleep 600']);
  await shell.says(/up/);
  await here.cli(['unhold', job]).ended;
  expect(await shell.ended).toMatchObject({ code: 125, stderr: expect.stringContaining('no longer held') });
});

test('a job that ran out of time is held, too, and nothing of it runs on', async () => {
  await using here = await onejob({ config });
  await here.up();
  const run = here.run('--no-workspace', '--timeout', '1s', '--', 'sh', '-c', 'echo data >out; setsid sleep 4567 & sleep 4567');
  expect((await run.ended).code).toBe(124);
  const [job] = await here.api.jobs({ all: true, pool: null });
  await expect.poll(async () => (await here.cli(['shell', job?.id ?? '', '--', 'cat', 'out']).ended).stdout).toBe('data\n');
  expect((await startChild('pgrep', ['-f', 'sleep 456[7]'], { cwd: here.cwd, env: here.env }).ended).code).toBe(1);
});
