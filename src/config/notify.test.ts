import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { configShow } from './explain.ts';
import { lookAtHost } from './host-look.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const token = 'T0001234/B0001234/abcdefghijklmnopqrstuvwx';

describe('notify', () => {
  it.each([
    ['{ command: [/usr/bin/logger, -t, onejob] }', []],
    ['{ webhook: "http://127.0.0.1:8080/x" }', []],
    ['{ webhook: "https://chat.example/hook", timeout: 5s }', []],
    ['{}', ['notify: has neither "webhook" nor "command": messages would go nowhere']],
    [
      '{ webhook: "https://a.example/x", command: [x] }',
      ['notify.command: conflicts with "webhook": messages go one way; remove one of the two'],
    ],
    [
      '{ webhook: "http://hooks.example/x" }',
      ['notify.webhook: is not encrypted; write https (http is allowed only for this host, such as 127.0.0.1)'],
    ],
    ['{ webhook: hunter2 }', ['notify.webhook: is not an https:// address']],
    [
      '{ webhook: 7 }',
      [
        'notify.webhook: expected an address such as "https://hooks.example/…", or its place: { file: /path } or { env: NAME }; found a number',
      ],
    ],
    ['{ command: [tell], timeout: 10ms }', ['notify.timeout: must be at least 1s, found "10ms"']],
    ['{ web_hook: x }', [expect.stringContaining('notify.web_hook: unknown key; did you mean "webhook"?')]],
  ])('%s', async (written, problems) => {
    const found = await folder.check(`notify: ${written}`);
    expect(found.map((line) => line.replace(/^config\.yml:1:\d+: /, ''))).toEqual(problems);
  });

  it('an address with a token belongs into a file, and is never shown', async () => {
    const written = `notify: { webhook: "https://hooks.example/services/${token}" }`;
    const [warning = '', ...more] = await folder.check(written);
    expect(warning).toMatch(
      /warning: notify\.webhook: contains what looks like a token, .*\{ file: \/etc\/onejob\/webhook\.url \}/,
    );
    expect([more, warning.includes('abcdef')]).toEqual([[], false]);
    const shown = JSON.stringify(configShow(await folder.load(written)));
    expect(shown).toContain('https://hooks.example/…');
    expect(shown).not.toContain('abcdef');
  });

  it('a file with it is a secret, which is checked before the first message', async () => {
    const file = folder.write('url', 'http://hooks.example/hunter2');
    const checked = await folder.load(`notify: { webhook: { file: ${file} } }`, { look: lookAtHost });
    expect(checked.config.secrets.map(([key]) => key)).toEqual(['notify.webhook']);
    expect(checked.errors.map(({ key, message }) => `${key}: ${message}`)).toEqual([
      'notify.webhook.file: is not encrypted; write https (http is allowed only for this host, such as 127.0.0.1)',
    ]);
    folder.write('url', 'https://hooks.example/hunter2\n');
    expect((await folder.load(`notify: { webhook: { file: ${file} } }`, { look: lookAtHost })).errors).toEqual([]);
  });
});
