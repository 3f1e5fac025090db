import { expect, test } from 'vitest';
import { askProgram } from './caller.ts';

const ended = { error: new Error('it failed'), code: 1, stdout: Buffer.alloc(0) };
const asked = (stderr: string) =>
  askProgram(['gcloud', 'auth'], { run: async () => ({ ...ended, stderr }) }, new AbortController().signal);

test.each([
  [
    'the line that names the error, however much advice follows',
    'ERROR: (gcloud.auth) You do not have an active account.\nPlease run:\n\n  $ gcloud auth login\n\nto select an account to use.\n',
    'It said: ERROR: (gcloud.auth) You do not have an active account.',
  ],
  ['else the last one', 'Traceback:\n  File "x"\nValueError: no token\n', 'It said: ValueError: no token'],
])('a program that prints no credential is quoted by %s', async (_, stderr, said) => {
  await expect(asked(stderr)).rejects.toMatchObject({ code: 'E_CLOUD_CREDENTIAL', message: expect.stringContaining(said) });
});
