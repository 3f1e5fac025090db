import fc from 'fast-check';
import { expect, it } from 'vitest';
import { masked } from './masked.ts';

it.each([
  ['make test', 'make test'],
  ['git clone https://x-token:hunter2@github.com/acme/app', 'git clone https://github.com/acme/app'],
  ['git clone https://me:p@ss@host/x', 'git clone https://host/x'],
  ['git clone git@github.com:acme/app', 'git clone git@github.com:acme/app'],
  ['CODECOV_TOKEN=hunter2 make', 'CODECOV_TOKEN=*** make'],
  ["export DB_PASSWORD='hunter2 and more'; x", 'export DB_PASSWORD=***; x'],
  ['tool --token hunter2 --jobs 4', 'tool --token *** --jobs 4'],
  ['tool --api-key=hunter2', 'tool --api-key=***'],
  ['curl -H "Authorization: Bearer hunter2" x', 'curl -H "Authorization: Bearer ***" x'],
  ['curl -u me:hunter2 x', 'curl -u *** x'],
  ['echo ghp_0123456789abcdefghij', 'echo ***'],
  ['echo bkct_0123456789abcdefghij now', 'echo *** now'],
  ['SECRET_A: oj1:226a3e64:YWdl', 'SECRET_A: ***'],
  ['x?access_token=hunter2&y=1', 'x?access_token=***&y=1'],
  [':key: rotate the token of staging', ':key: rotate the token of staging'],
  ['Fix tokenizer=fast', 'Fix tokenizer=fast'],
])('%j', (text, shown) => expect(masked(text)).toBe(shown));

it('ends for any text, and does it once', () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 4096 }), (text) => masked(masked(text)) === masked(text)),
    { numRuns: 300, examples: [['x://a@b@c']] },
  );
});
