import { describe, expect, test } from 'vitest';
import type { AboutView, JobView } from '../contract/schema.ts';
import { jobTable } from './jobs.ts';
import { createColors, flow, hang, harmless, printable, table, widthOf, wrap } from './text.ts';

const long = 'Cannot pull "registry.example.org/group/image:1": no route to host, tried three times, '.repeat(4).trim();

test('a text is broken at spaces, and a word that is too long where it must be', () => {
  expect(wrap('one two three', 7)).toEqual(['one two', 'three']);
  expect(wrap('see /a/very/long/path now', 8)).toEqual(['see', '/a/very/', 'long/pat', 'h now']);
});

test('continued lines are indented under the first; in a pipe nothing is wrapped', () => {
  expect(hang('! ', 'one two three', 9)).toEqual(['! one two', '  three']);
  expect(hang('! ', 'one two three', null)).toEqual(['! one two three']);
  expect(hang('! ', 'x', 1)).toEqual(['! x']);
});

test('columns are aligned, and the last one is cut at a terminal', () => {
  expect(
    table(
      [
        ['A', 'B'],
        ['long', 'a much longer cell'],
      ],
      12,
    ),
  ).toEqual(['A     B', 'long  a muc…']);
});

test('a cell keeps our colours, and nothing else that a terminal obeys', () => {
  const { red } = createColors(true);
  const evil = 'x\u001b[2J\u001b]0;title\u0007\n\u001b[8my';
  expect(table([[red(evil), evil]], null)).toEqual([`${red('x [2J ]0;title [8my')}  x [2J ]0;title [8my`]);
});

test('signs that hide or turn text are shown as what they are; text of several lines keeps those of an emoji', () => {
  const signs = ['\u202e', '\u2066', '\u200b', '\u200d', '\ufeff', '\u00ad', '\u{e0041}'];
  for (const sign of signs) expect([sign, printable(`main${sign}x`)]).toEqual([sign, 'main\ufffdx']);
  expect(harmless('a\u202eb\u2067c\u200dd\n')).toBe('a\ufffdb\ufffdc\u200dd\n');
  const [, row = ''] = jobTable([job('7f3a', { name: 'ok\u202egnp.exe' })], createColors(false), 200, 4_000);
  expect(row).toContain('ok\ufffdgnp.exe');
});

function job(id: string, change: Partial<JobView> = {}): JobView {
  return {
    id,
    service: 'own',
    pool: 'default',
    command: ['make', 'test'],
    about: null,
    state: 'queued',
    priority: 0,
    attempt: 0,
    agent: null,
    result: null,
    reason: null,
    cold: false,
    artifacts: [],
    submittedAt: 0,
    startedAt: null,
    endedAt: null,
    ...change,
  };
}

const shown = (jobs: readonly JobView[], width: number | null) => jobTable(jobs, createColors(false), width, 4_000);

test('jobs: why they wait stands below the table, once, whole, and no line is too wide', () => {
  const jobs = [
    job('a1', { reason: long }),
    job('b2', { reason: long }),
    job('c3', { state: 'running', command: ['x'.repeat(300)] }),
  ];
  for (const width of [60, 80, 100]) {
    const lines = shown(jobs, width);
    for (const line of lines) expect(widthOf(line)).toBeLessThanOrEqual(width);
    expect(lines.slice(1, 3)).toEqual(['a1   default  queued   4s     make test', 'b2   default  queued   4s     make test']);
    expect(lines[4]).toBe('');
    expect(lines.slice(5).join(' ').replace(/ +/g, ' ')).toBe(`a1, b2: ${long}`);
  }
});

test('jobs: many that wait for the same are counted, not listed', () => {
  const jobs = Array.from({ length: 9 }, (_, n) => job(`j${n}`, { reason: 'the pool drains' }));
  expect(shown(jobs, 80).slice(-2)).toEqual(['', '9 jobs: the pool drains']);
});

test('jobs: in a pipe each line says all there is to say of its job', () => {
  expect(shown([job('a1', { reason: long })], null)).toEqual([
    'JOB  POOL     STATE   SINCE  COMMAND',
    `a1   default  queued  4s     make test — ${long}`,
  ]);
});

describe('jobs of a CI service that keeps them', () => {
  const about: AboutView = {
    title: 'app-ci #7 build',
    definition: 'app-ci',
    build: '7',
    repository: null,
    branch: 'main',
    reason: 'manual',
    link: 'https://dev.azure.com/acme',
    demands: [],
  };
  const kept = (id: string, change: Partial<JobView>) => job(id, { service: 'azure', command: [], about, pool: 'lab', ...change });

  test('have their title as the command, and the service’s word next to the state', () => {
    const jobs = [
      kept('azure-1', { state: 'done', result: { kind: 'reported', word: 'succeededWithIssues' }, outcome: 'passed' }),
      kept('azure-2', { state: 'done', result: null, about: { ...about, branch: null } }),
      kept('azure-3', { state: 'waiting', pool: '', submittedAt: null, reason: 'paused: the token was refused' }),
    ];
    expect(shown(jobs, 80)).toEqual([
      'JOB      POOL  STATE                         SINCE  BRANCH  COMMAND',
      'azure-1  lab   passed (succeededWithIssues)  4s     main    app-ci #7 build',
      'azure-2  lab   ended                         4s     -       app-ci #7 build',
      'azure-3  -     waiting                              main    app-ci #7 build',
      '',
      'azure-3: paused: the token was refused',
    ]);
  });

  test('have no column for branches without any, and are listed with jobs of the own queue', () => {
    const bare = kept('azure-1', { state: 'running', about: { ...about, branch: null } });
    expect(shown([bare, job('a1', { command: ['make'] })], 80)[0]).toBe('JOB      POOL     STATE    SINCE  COMMAND');
    expect(shown([kept('azure-1', { state: 'running' }), job('a1', { command: ['make'] })], 80).slice(1)).toEqual([
      'azure-1  lab      running  4s     main    app-ci #7 build',
      'a1       default  queued   4s     -       make',
      '',
      'a1: all agents are busy',
    ]);
  });

  test('are named by the beginning of a UUID at a terminal, unless two begin so; a long branch gives way to the title', () => {
    const id = (start: string) => `${start}-c7-4000-8000-${'0'.repeat(12)}`.replace('-c7-', '-c7c7-');
    const long = { about: { ...about, branch: `feature/${'x'.repeat(60)}` } };
    const one = kept(id('d43aaec7'), { state: 'running', reason: 'it waits', ...long });
    const lines = shown([one, kept(id('00000000'), { state: 'running' })], 80);
    expect(lines.slice(1)).toEqual([
      `d43aaec7  lab   running  4s     feature/${'x'.repeat(15)}…  app-ci #7 build`,
      `00000000  lab   running  4s     main${' '.repeat(22)}app-ci #7 build`,
      ...['', 'd43aaec7: it waits'],
    ]);
    expect(shown([one], null)[1]).toContain(`${one.id}  lab   running  4s     ${long.about.branch}  app-ci`);
    const twin = kept(one.id.replace(/0$/, '1'), { state: 'running' });
    expect(shown([one, twin], 120)[1]).toContain(one.id);
  });

  test('are never painted as failed: what the word means is the service’s to know', () => {
    const done = kept('azure-1', { state: 'done', result: { kind: 'reported', word: 'evil\u001b[31m' } });
    const [, line = ''] = jobTable([done], createColors(true), 80, 4_000);
    expect(line).not.toContain('\u001b');
  });
});

describe('sentences at a terminal', () => {
  test('break between words, and never inside a path', () => {
    expect(flow('onejob: ', 'one two three four', 16)).toBe('onejob: one two\n  three four');
    expect(flow('onejob: ', 'in /a/path/that/is/longer/than/a/line there', 20)).toBe(
      'onejob: in\n  /a/path/that/is/longer/than/a/line\n  there',
    );
    expect(flow('12:00:00 ', '\u001b[33mwarning: x\u001b[0m  a=1', 18)).toBe('12:00:00 \u001b[33mwarning:\n  x\u001b[0m  a=1');
  });

  test('are unchanged if they fit, and in a pipe', () => {
    expect(flow('onejob: ', 'one  two', 16)).toBe('onejob: one  two');
    expect(flow('onejob: ', 'x '.repeat(100), null)).toBe(`onejob: ${'x '.repeat(100)}`);
  });
});
