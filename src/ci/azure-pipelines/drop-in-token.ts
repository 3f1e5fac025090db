/** The drop-in's first argument: a personal access token, `@FILE` with one, or `-` for the environment. */
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { CliContext } from '../../cli/session.ts';
import { OnejobError } from '../../errors.ts';
import { checkSecret, type SecretReference } from '../../secrets/reference.ts';
import type { WrittenToken } from './drop-in-config.ts';

export interface GivenToken {
  readonly reference: SecretReference;
  /** The reference for a file of config; one that stands in no file gets the place where it should be. */
  readonly written: WrittenToken;
  /** How that file is made; null when it is there. */
  readonly remark: string | null;
  /** What is not good about it; null when nothing is. */
  readonly warning: string | null;
}

/**
 * No message holds what was given, unless it is the path of a file.
 * @throws OnejobError E_USAGE, E_SECRET
 */
export async function givenToken(argument: string, context: CliContext): Promise<GivenToken> {
  if (argument === '-') return fromEnvironment(context);
  if (argument.startsWith('@')) return inFile(resolve(context.cwd, argument.slice(1)), `onejob azure ${argument}`);
  const token = argument.trim();
  const fail = (message: string, hint: string): never => {
    throw new OnejobError('E_USAGE', message, { hint });
  };
  const inside = 'Type @FILE with the file that holds it, or - to take it from AZP_TOKEN_FILE or AZP_TOKEN.';
  if (token === '') fail('The personal access token is empty.', inside);
  if (/^https?:\/\//i.test(token))
    fail('The first argument is an address: the personal access token is missing before it.', inside);
  if (existsSync(resolve(context.cwd, token)))
    fail(`The first argument is a file, ${token}, not a personal access token.`, `Type @${token}.`);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a token that was read from a file in a wrong way has them
  if (/[\s\u0000-\u001f\u007f]/.test(token))
    fail('The personal access token has blanks or line ends inside, so it is not one.', inside);
  const { uid, configHome } = context.environment;
  const path = uid === 0 ? '/etc/onejob/azure.pat' : join(configHome, 'onejob', 'azure.pat');
  return {
    reference: { kind: 'memory', name: 'the command line', expires: null, read: () => token },
    written: { file: path },
    remark: `Put the token there first: install -D -m 600 /dev/stdin ${path}`,
    warning:
      'the token stood on the command line: every user of this host could read it for a moment, in the arguments of a wrapper such as npx they can for as long as that runs, and the shell may have kept it; @FILE or - keep it out of there',
  };
}

async function fromEnvironment(context: CliContext): Promise<GivenToken> {
  const { AZP_TOKEN_FILE: file, AZP_TOKEN: token } = context.variables;
  if (file) return inFile(resolve(context.cwd, file), 'AZP_TOKEN_FILE');
  if (token) {
    const reference: SecretReference = { kind: 'env', variable: 'AZP_TOKEN', expires: null };
    return { reference, written: { env: 'AZP_TOKEN' }, remark: null, warning: null };
  }
  throw new OnejobError('E_USAGE', 'The first argument is -, but neither AZP_TOKEN_FILE nor AZP_TOKEN is set.', {
    hint: 'Set AZP_TOKEN_FILE to the file that holds the personal access token, or type @FILE.',
  });
}

async function inFile(path: string, from: string): Promise<GivenToken> {
  const reference: SecretReference = { kind: 'file', path, expires: null };
  const { problem } = await checkSecret(reference, 0);
  if (problem !== null) {
    throw new OnejobError('E_SECRET', `Cannot read the personal access token (${from}): ${problem}.`, {
      hint: `Put it into ${path}, readable for the user that onejob runs as only (mode 600), or name another file.`,
    });
  }
  return { reference, written: { file: path }, remark: null, warning: null };
}
