/** What a task says of its job, and what of it a runner gets. */
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { testPool } from '../../../test/kit/buildkite-manager.ts';
import { forkPull, payload, taskAnswer } from '../../../test/kit/gitea-task.ts';
import { decideTrust } from '../kit/trust.ts';
import { entriesOf, fieldOf, fieldsOf, longField, structOf } from './proto.ts';
import { handedIn, taskFacts, taskIn } from './task.ts';

const given = (...spec: Parameters<typeof taskAnswer>) => {
  const task = taskIn(taskAnswer(...spec));
  if (task === null) throw new Error('no task');
  return task;
};
const factsOf = (context: Readonly<Record<string, unknown>>) => taskFacts(given(101, { context }));

describe('an answer', () => {
  it('is read as the server wrote it', () => {
    const { id, context, vars } = given(2 ** 40, { vars: { NAME: 'value' } });
    expect([id, vars, context.token, context.ref_protected]).toEqual([2 ** 40, { NAME: 'value' }, `token-of-${2 ** 40}`, false]);
    expect(context.event).toEqual({ commits: [{ id: 'c0ffee', added: [], size: 1.5 }], before: null });
  });

  it('may have no task', () => {
    expect(taskIn(taskAnswer(null))).toBeNull();
    expect(taskIn(Buffer.alloc(0))).toBeNull();
  });

  it('that is cut off anywhere is an error, or says less, but never something else', () => {
    const whole = taskAnswer(101);
    for (let size = 1; size < whole.length - 2; size += 1) expect(() => taskIn(whole.subarray(0, size))).toThrow(RangeError);
  });

  it('that is deeper than any event is an error', () => {
    let value: Buffer = longField(3, Buffer.from('x'));
    for (let depth = 0; depth < 200; depth += 1) value = longField(6, longField(1, value));
    expect(() => structOf(longField(1, longField(2, value)))).toThrow(RangeError);
  });
});

describe('a job', () => {
  it('is of the branch or the tag that was pushed', () => {
    expect(factsOf({})).toMatchObject({
      organisation: 'acme',
      pipeline: 'demo',
      branch: 'main',
      tag: null,
      pullRequest: null,
      source: 'webhook',
      commit: `c0ffee${'0'.repeat(34)}`,
      title: 'a.yml #7 j',
      link: 'http://forge/acme/demo/actions/runs/9',
      repository: 'http://forge/acme/demo',
      hidden: null,
    });
    expect(factsOf({ ref: 'refs/tags/v1', event_name: 'release' })).toMatchObject({ branch: null, tag: 'v1', source: 'webhook' });
  });

  it.each([
    ['schedule', 'schedule', null],
    ['workflow_dispatch', 'api', null],
    ['workflow_run', 'trigger_job', { pipeline: null }],
  ])('of the event %s was made by %s', (event_name, source, triggeredBy) => {
    expect(factsOf({ event_name })).toMatchObject({ source, triggeredBy });
  });

  const trust = { ...testPool().trust, branches: ['main'] };
  const kindOf = (context: Readonly<Record<string, unknown>>) => decideTrust(factsOf(context), trust).kind;

  it.each([
    ['a fork’s pull request', forkPull()],
    ['one whose fork is gone', forkPull(null)],
    ['one that the event does not describe', { event_name: 'pull_request', event: {} }],
    [
      'pull_request_target, which runs on the branch of its base',
      { ...forkPull(), event_name: 'pull_request_target', ref: 'refs/heads/main' },
    ],
    ['a comment on it', { ...forkPull(), event_name: 'issue_comment', ref: 'refs/heads/main' }],
    ['no event at all', { event_name: '' }],
    ['no ref', { ref: '' }],
    ['a ref with a line break', { ref: 'refs/heads/ma\nin' }],
    ['the ref of a pull request in another event', { ref: 'refs/pull/3/head' }],
  ])('of %s is not trusted', (_, context) => {
    expect(kindOf(context)).toBe('refused');
  });

  it('of a pull request from its own repository is of the branch that it comes from', () => {
    const own = forkPull('http://forge/acme/demo');
    expect(kindOf(own)).toBe('trusted');
    expect(
      kindOf({
        ...own,
        event: { pull_request: { ...own.event.pull_request, head: { ref: 'x', repo: { html_url: 'http://forge/acme/demo' } } } },
      }),
    ).toBe('refused');
  });
});

describe('what the runner gets', () => {
  const secrets = { DEPLOY: 'geheim' };
  const hand = (trusted: boolean, spec: Parameters<typeof taskAnswer>[1] = { secrets }) => {
    const bytes = handedIn(taskAnswer(101, spec), {
      url: 'https://git.example.org',
      trusted,
      secrets: trusted ? [{ name: 'OWN', value: 'of the host' }] : [],
    });
    const all = fieldsOf(bytes);
    const task = fieldsOf(fieldOf(all, 1)?.value ?? Buffer.alloc(0));
    const texts = Object.fromEntries(entriesOf(task, 4).map(([name, value]) => [name, value.toString()]));
    return { bytes, all, task, texts, payload: fieldOf(task, 2)?.value.toString() ?? '' };
  };

  it('is the task as it came, with fields that onejob does not know', () => {
    const { all, task } = hand(true);
    expect(all.map(({ no }) => no)).toEqual([1, 2]);
    const before = fieldsOf(fieldOf(fieldsOf(taskAnswer(101, { secrets })), 1)?.value ?? Buffer.alloc(0));
    for (const no of [1, 3, 15]) expect(fieldOf(task, no)?.raw).toEqual(fieldOf(before, no)?.raw);
  });

  it('has all secrets if the job is trusted, and else its own token only', () => {
    const own = { GITHUB_TOKEN: 'token-of-101', GITEA_TOKEN: 'token-of-101' };
    expect(hand(true).texts).toEqual({ ...own, DEPLOY: 'geheim', OWN: 'of the host' });
    expect(hand(false).texts).toEqual(own);
    expect(hand(false).bytes.includes('geheim')).toBe(false);
  });

  it('names the server’s own address in the environment of each step, unless the step names another', () => {
    const text = hand(true).payload;
    expect(
      text.match(/GITHUB_SERVER_URL: https:\/\/git\.example\.org\n|GITHUB_SERVER_URL: https:\/\/git\.example\.org,/g),
    ).toHaveLength(2);
    expect(text).toContain('GITHUB_API_URL: https://git.example.org/api/v1');
    expect(text).toContain('GITHUB_API_URL: mine');
    expect(text).toContain('ACTIONS_RUNTIME_URL: https://git.example.org/api/actions_pipeline/');
  });

  it('changes nothing else of a workflow', () => {
    const odd = `"on": push
jobs:
  j:
    runs-on: [gpu, '08']
    env: {A: yes, B: "yes", C: 0o17, D: 1.0, E: ~, F: 2001-12-14, G: "a: b # c"}
    steps:
      - name: folded
        run: >-
          one   two
          three
      - run: "echo \\"\${{ secrets.X }}\\" \\t \\u00e9"
`;
    const changed = hand(true, { payload: odd }).payload;
    expect(changed).toContain(
      'env: {A: yes, B: "yes", C: 0o17, D: 1.0, E: ~, F: 2001-12-14, G: "a: b # c"}'.replaceAll(/[{}]/g, (brace) =>
        brace === '{' ? '{ ' : ' }',
      ),
    );
    // Readers of both versions of YAML see the same.
    for (const version of ['1.1', '1.2'] as const) {
      const read = (text: string) => parse(text, { version });
      const without = read(changed);
      for (const step of without.jobs.j.steps) delete step.env;
      expect(without).toEqual(read(odd));
    }
  });

  it('leaves a workflow alone that it cannot read', () => {
    for (const broken of [
      `jobs: ${'['.repeat(100_000)}`,
      `jobs: { j: { steps: [{ run: ${'x'.repeat(2 ** 20)} }] } }`,
      'jobs: [',
      'jobs: 7',
      '',
      payload.replace('steps:', 'uses: ./x\n    other:'),
    ])
      expect(hand(true, { payload: broken }).payload.trimEnd()).toBe(broken.trimEnd());
  });
});
