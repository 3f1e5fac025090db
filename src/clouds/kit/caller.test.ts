import { expect, test } from 'vitest';
import type { Ended } from '../../system/run.ts';
import { askProgram } from './caller.ts';

const ended = { error: new Error('it failed'), stdout: Buffer.alloc(0) };
const asked = (stderr: string, { code = 1 as Ended['code'], command = 'gcloud auth' } = {}) =>
  askProgram(command.split(' '), { run: async () => ({ ...ended, code, stderr }) }, new AbortController().signal);

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

const azSays = (why: string) => `ERROR: ${why}\nInteractive authentication is needed. Please run:\naz logout\naz login`;
const gcloudSays = (why: string) =>
  `ERROR: (gcloud.auth.print-access-token) ${why}\nPlease run:\n\n  $ gcloud auth login\n\nto obtain new credentials.\n`;

test.each([
  ['is not installed', 'az account', 'ENOENT', '', 'Install "az"'],
  ['may not be run', './token', 'EACCES', '', 'Run "./token"'],
  ['calls one that is not installed', './token', 127, './token: line 2: az: not found', 'Run "./token"'],
  ['has nobody signed in', 'az account', 1, "ERROR: Please run 'az login' to setup account.", 'Run "az login"'],
  [
    'needs a person again',
    'az account',
    1,
    azSays('AADSTS700082: The refresh token has expired due to inactivity.'),
    'Run "az login"',
  ],
  [
    'has no active account',
    'gcloud auth',
    1,
    gcloudSays('You do not currently have an active account selected.'),
    'Run "gcloud auth login"',
  ],
  [
    'has a token that was revoked',
    'gcloud auth',
    1,
    gcloudSays("There was a problem refreshing your current auth tokens: ('invalid_grant: Bad Request')"),
    'Run "gcloud auth login"',
  ],
  [
    'has such a token for programs',
    'gcloud auth application-default print-access-token',
    1,
    gcloudSays('There was a problem refreshing auth tokens for account default: invalid_grant: Bad Request'),
    'Run "gcloud auth application-default login"',
  ],
  [
    'has no account for programs',
    'gcloud auth application-default print-access-token',
    1,
    'ERROR: (gcloud.auth.application-default.print-access-token) Your default credentials were not found.',
    'Run "gcloud auth application-default login"',
  ],
  [
    'has an expired session',
    'aws configure export-credentials --profile ci',
    255,
    'Error when retrieving credentials from sso: The SSO session associated with this profile has expired or is otherwise invalid.',
    'Run "aws sso login --profile ci"',
  ],
  ['knows no profile', 'aws configure', 255, 'The config profile (ci) could not be found', 'Run "aws configure"'],
] as const)('no other try changes that a program %s, and the error says what to type', async (_, command, code, stderr, hint) => {
  const error = { code: 'E_CLOUD_CREDENTIAL', retry: false, hint: expect.stringContaining(hint) };
  await expect(asked(stderr, { command, code })).rejects.toMatchObject(error);
});

test.each([
  ['takes too long', null, "Please run 'az login'"],
  [
    'has no network',
    1,
    gcloudSays(
      "There was a problem refreshing your current auth tokens: HTTPSConnectionPool(host='oauth2.googleapis.com'): Max retries exceeded",
    ),
  ],
  ['meets a fault of its provider', 1, azSays('AADSTS90033: A transient error has occurred. Please try again.')],
  ['could not start for lack of room', 'EAGAIN', ''],
  ['says nothing that is known', 1, 'vault: sealed'],
] as const)('another try may help when a program %s', async (_, code, stderr) => {
  await expect(asked(stderr, { code })).rejects.toMatchObject({ code: 'E_CLOUD_CREDENTIAL', retry: true });
});
