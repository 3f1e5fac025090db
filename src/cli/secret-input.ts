/** Input of the commands about secrets: values, keys, names and pipelines. */
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { codeOf, OnejobError } from '../base/errors.ts';
import { type PipelinePattern, parsePipeline } from '../schema/pipelines.ts';
import { readSecret } from '../schema/secret-reference.ts';
import { type PublicKey, parseKeys, parsePublicKeys, type SecretKeys } from '../secrets/keys.ts';
import { formatOf } from '../secrets/open.ts';
import { secretsInText } from '../secrets/rotate.ts';
import { longestName, looksSealed, variableName } from '../secrets/sealed-format.ts';
import { turn } from '../system/system-clock.ts';
import { wrongUsage } from './exit.ts';
import { openReader } from './init/ask.ts';
import type { Session } from './session.ts';

export interface PipelineFlags {
  readonly organization?: readonly string[];
  readonly organisation?: readonly string[];
  readonly pipeline?: readonly string[];
}

/** bytes */
const mostInput = 4 << 20;

/** Whether standard input is a terminal. */
export function isTyped({ context }: Session): boolean {
  return context.stdin().isTTY === true;
}

/** All of standard input. @throws OnejobError E_USAGE when it is over 4 MiB */
export async function readInput({ context }: Session): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of context.stdin() as AsyncIterable<Uint8Array | string>) {
    const bytes = Buffer.from(chunk);
    chunks.push(bytes);
    length += bytes.length;
    if (length > mostInput) throw wrongUsage('Standard input has more than 4 MiB.');
  }
  return Buffer.concat(chunks);
}

/** The encrypted value in a text: alone, quoted, or in a line of a pipeline; else the whole text. @throws OnejobError E_USAGE */
export function encryptedIn(given: string): string {
  const text = given.trim().replace(/^(["'])(.*)\1$/s, '$2');
  if (formatOf(text) !== null || looksSealed(text)) return text;
  const found = secretsInText(text);
  if (found.length > 1) throw wrongUsage(`There are ${found.length} encrypted values on standard input.`, 'Give exactly one.');
  return found[0]?.text ?? text;
}

/** One line from a terminal. @throws OnejobError E_USAGE without an answer, or when several lines were pasted */
export async function ask(
  input: Readable,
  output: Writable,
  prompt: string,
  options: { readonly hidden: boolean },
): Promise<string> {
  let isHidden = false;
  const reader = openReader(input, output, () => isHidden);
  const lines: string[] = [];
  try {
    reader.setPrompt(`${prompt}: `);
    reader.prompt();
    isHidden = options.hidden;
    await new Promise<void>((resolve) => {
      reader.on('line', (line) => {
        lines.push(line);
        // Other lines of a pasted text arrive in the same turn.
        void turn().then(resolve);
      });
      reader.on('SIGINT', () => reader.close());
      reader.on('close', () => resolve());
    });
    if (options.hidden) output.write('\n');
    const [line] = lines;
    if (line === undefined || line === '') throw wrongUsage('Nothing was typed, so nothing was done.');
    if (lines.length > 1 || reader.line !== '') {
      const hint = 'Put the value into a file and give it on standard input: "onejob secret encrypt … <FILE".';
      throw wrongUsage('Only one line can be typed here, but there were more.', hint);
    }
    return line;
  } finally {
    reader.close();
  }
}

/** Public keys from an option: `age1…`, a PEM block, or a file of either or of private keys. @throws E_USAGE, E_SECRET_KEY */
export async function publicKeys({ context }: Session, given: string, option: string): Promise<PublicKey[]> {
  if (/^AGE-SECRET-KEY-|^-----BEGIN (?!(RSA )?PUBLIC)/.test(given.trim())) {
    const hint = "Give the public key or a file, and remove the private key from your shell's history.";
    throw wrongUsage(`A private key was given for ${option}, where every user of this host could see it.`, hint);
  }
  if (/^age1|^-----BEGIN /.test(given.trim())) return parsePublicKeys(given, `The key of ${option}`);
  const path = resolve(context.cwd, given);
  return parsePublicKeys(readText(path, option), path);
}

/** @throws OnejobError E_SECRET for a file that cannot be read, E_SECRET_KEY */
export async function privateKeys({ context }: Session, given: string): Promise<SecretKeys> {
  const path = resolve(context.cwd, given);
  return parseKeys(await readSecret({ kind: 'file', path, expires: null }, undefined, 'private key'), path);
}

/** The first key of this kind. @throws OnejobError E_SECRET_KEY */
export function keyFor(keys: readonly PublicKey[], isOldFormat: boolean): PublicKey {
  const found = keys.find((key) => key.kind === (isOldFormat ? 'rsa' : 'x25519'));
  if (found !== undefined) return found;
  const [message, hint] = isOldFormat
    ? ['The key is not an RSA key, but the old format needs one.', 'Leave --seed-format out.']
    : [
        'The key is an RSA key, which only the old format supports.',
        'Make a new one with "onejob secret keygen", or write the old format with --seed-format.',
      ];
  throw new OnejobError('E_SECRET_KEY', message, { hint });
}

/** @throws OnejobError E_USAGE */
export function checkName(name: string): string {
  if (name.startsWith('SECRET_'))
    throw wrongUsage('--name begins with SECRET_, but onejob adds that prefix itself.', 'Give the name that the job sees.');
  if (variableName.test(name) && name.length <= longestName) return name;
  throw wrongUsage('--name is not a valid variable name.', 'Use letters, digits and _, such as CODECOV_TOKEN.');
}

/** The pipelines of a value; empty without options. @throws OnejobError E_USAGE */
export function pipelinesOf({ organization = [], organisation = [], pipeline = [] }: PipelineFlags): PipelinePattern[] {
  const organizations = [...organization, ...organisation];
  const hint =
    "Give them as in the address of the pipeline's page: --organization acme --pipeline solver, or --pipeline acme/solver.";
  if (pipeline.length === 0 && organizations.length > 0) {
    const message = '--pipeline is missing: the organisation alone does not say which pipelines.';
    throw wrongUsage(message, "Name them with --pipeline; use --pipeline '*' for all of them.");
  }
  const all = pipeline.flatMap((each) => {
    if (each.includes('/')) return [each];
    if (organizations.length === 0) throw wrongUsage('--pipeline has no organisation.', hint);
    return organizations.map((one) => `${one}/${each}`);
  });
  const bad = all.find((each) => parsePipeline(each) === null);
  if (bad !== undefined) throw wrongUsage(`"${bad}" is not a valid pipeline: slugs are in lower case and have no blanks.`, hint);
  return [...new Set(all)];
}

function readText(path: string, option: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const why = codeOf(error) === 'ENOENT' ? 'there is no such file' : 'it cannot be read';
    throw new OnejobError('E_SECRET_KEY', `Cannot read the key of ${option} from ${path}: ${why}.`, {
      hint: 'Give a file with a public key, or the key itself: age1… .',
    });
  }
}
