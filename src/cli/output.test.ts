/** Failures on a terminal, including texts of others. */
import { Writable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { OnejobError } from '../base/errors.ts';
import { readEnvironment } from '../config/environment.ts';
import { createOutput, OutputClosed } from './output.ts';

function failing(error: unknown, json = false): string {
  const { context, stderr } = testContext([], '/nowhere');
  createOutput(context, json).fail(error);
  return stderr();
}

describe('a failure', () => {
  const evil = 'gpu\u001b[2J\u001b]0;me\u0007\r\u009b1Aok';
  const harmed = 'gpu [2J ]0;me   1Aok';

  it('with control characters in a name or a link moves no cursor, and keeps its lines', () => {
    const error = new OnejobError('E_CI_POOL', `It has: ${evil}.\nAnd\tmore.`, { hint: `Look there: https://x/${evil}` });
    expect(failing(error)).toBe(`onejob: It has: ${harmed}.\n  And\tmore.\n  Look there: https://x/${harmed}\n`);
  });

  it('of ours nobody thought of has a harmless stack', () => {
    const said = failing(new TypeError(evil));
    expect(said).toContain(`TypeError: ${harmed}\n    at `);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
    expect(said).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/);
  });

  it('is exact for programs', () => {
    const error = new OnejobError('E_CI_POOL', evil);
    expect(JSON.parse(failing(error, true))).toEqual({ code: 'E_CI_POOL', message: evil, hint: null, retry: false });
  });
});

it('a printed line keeps its lines and our colours, and nothing else that a terminal obeys', async () => {
  const { context, stdout } = testContext([], '/nowhere');
  await createOutput(context, false).print('a\u001b[2Jb\n\tc', '\u001b[31md\u001b[39m');
  expect(stdout()).toBe('a [2Jb\n\tc\n\u001b[31md\u001b[39m\n');
});

it('a terminal that was given no size is as wide as usual', () => {
  const stdout = Object.assign(new Writable({ write: (_bytes, _encoding, done) => done() }), { isTTY: true, columns: 0 });
  expect(createOutput(testContext([], '/nowhere', { stdout }).context, false).width).toBe(80);
});

it.each<[Record<string, string>, boolean]>([
  [{}, true],
  [{ TERM: 'xterm-256color' }, true],
  [{ TERM: 'dumb' }, false],
  [{ TERM: 'dumb', FORCE_COLOR: '1' }, true],
  [{ NO_COLOR: '1', FORCE_COLOR: '1' }, false],
])('a terminal with %j has colours: %s', async (variables, isColored) => {
  const stream = () =>
    Object.assign(new Writable({ write: (bytes, _, done) => done(void said.push(String(bytes))) }), { isTTY: true });
  const said: string[] = [];
  const environment = readEnvironment({ HOME: '/nowhere', ...variables });
  const output = createOutput(testContext([], '/nowhere', { stdout: stream(), stderr: stream(), environment }).context, false);
  await output.print(output.colors.bold('a'));
  output.fail(new OnejobError('E_CI_POOL', 'No.'));
  await output.flush();
  expect(said.join('').includes('\u001b[1m')).toBe(isColored);
  expect(said.join('').includes('\u001b[31m')).toBe(isColored);
  expect(output.plain).toBe(!isColored);
  expect(output.showsProgress).toBe(variables.TERM !== 'dumb');
});

describe('output that cannot be written', () => {
  const to = (code: string, ignored = '') => {
    const stdout = new Writable({ write: (_bytes, _encoding, done) => done(Object.assign(new Error(`${code}: write`), { code })) });
    const environment = readEnvironment({ HOME: '/nowhere', ONEJOB_IGNORED: ignored });
    return createOutput(testContext([], '/nowhere', { stdout, environment }).context, false);
  };

  it.each([
    ['ENOSPC', /^Cannot write to standard output: no space is left on its disk \(ENOSPC\)\.$/],
    ['EDQUOT', /quota is used up \(EDQUOT\)/],
    ['EIO', /its disk failed, or its terminal is gone \(EIO\)/],
    ['EFOO', /^Cannot write to standard output: EFOO: write\.$/],
  ])('is an error with the reason, also of the only write: %s', async (code, message) => {
    const output = to(code);
    const error = { code: 'E_OUTPUT', message: expect.stringMatching(message) };
    await expect(output.print('all')).rejects.toMatchObject(error);
    await expect(output.print('more')).rejects.toMatchObject(error);
  });

  it('for lack of a reader ends in silence, unless the caller ignores PIPE', async () => {
    await expect(to('EPIPE').print('all')).rejects.toBeInstanceOf(OutputClosed);
    await expect(to('EPIPE', 'SIGPIPE').print('all')).rejects.toMatchObject({ code: 'E_OUTPUT' });
  });
});
