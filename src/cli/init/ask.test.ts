/** Names from a service in questions to a person. */
import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { OnejobError } from '../../base/errors.ts';
import { openPerson } from './ask.ts';

it('names of a service cannot move the cursor in questions and refusals', async () => {
  const [input, output] = [new PassThrough(), new PassThrough()];
  let shown = '';
  const wrong = Promise.withResolvers<void>();
  output.on('data', (bytes: Buffer) => {
    shown += bytes.toString();
    if (shown.includes('It has')) wrong.resolve();
  });
  using person = openPerson(input, output, new OnejobError('E_USAGE', 'It ended.'));
  let tries = 0;
  const asked = person.ask({
    text: 'Pool of \u001b]0;title\u0007',
    usual: null,
    read: (typed) => (tries++ === 0 ? { again: 'It has: lab\u001b[2J\u009b1A.\nAnd more.' } : { value: typed }),
  });
  input.write('nope\n');
  await wrong.promise;
  input.write('gpu\n');
  expect(await asked).toBe('gpu');
  expect(shown).toContain('Pool of  ]0;title : ');
  expect(shown).toContain('  It has: lab [2J 1A.\nAnd more.\n');
});
