/** What the commands about secrets are given: values on standard input or typed unseen, keys, names and pipelines. */
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { OnejobError } from '../errors.ts';
import { type PublicKey, parseKeys, parsePublicKeys, type SecretKeys } from '../secrets/keys.ts';
import { formatOf } from '../secrets/open.ts';
import { type PipelinePattern, parsePipeline } from '../secrets/pipelines.ts';
import { readSecret } from '../secrets/reference.ts';
import { secretsInText } from '../secrets/rotate.ts';
import { longestName, looksSealed, variableName } from '../secrets/sealed-format.ts';
import { openReader } from './init-ask.ts';
import type { Session } from './session.ts';

export interface PipelineFlags {
  readonly organization?: readonly string[];
  readonly organisation?: readonly string[];
  readonly pipeline?: readonly string[];
}

/** bytes */
const mostInput = 4 << 20;

/** Whether a person sits at standard input. */
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
    if (length > mostInput) throw new OnejobError('E_USAGE', 'Standard input has more than 4 MiB.');
  }
  return Buffer.concat(chunks);
}

/**
 * The encrypted value in what was given: alone, in quotes, or as a line of a pipeline; all of it when there is none.
 * @throws OnejobError E_USAGE when there are several
 */
export function encryptedIn(given: string): string {
  const text = given.trim().replace(/^(["'])(.*)\1$/s, '$2');
  if (formatOf(text) !== null || looksSealed(text)) return text;
  const found = secretsInText(text);
  if (found.length > 1) {
    throw new OnejobError('E_USAGE', `There are ${found.length} encrypted values on standard input.`, {
      hint: 'Give exactly one.',
    });
  }
  return found[0]?.text ?? text;
}

/** One line from a terminal. @throws OnejobError E_USAGE when nobody answers, or more than one line comes at once */
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
        // What was pasted comes in one piece: its other lines are there by then.
        setImmediate(resolve);
      });
      reader.on('SIGINT', () => reader.close());
      reader.on('close', () => resolve());
    });
    if (options.hidden) output.write('\n');
    const [line] = lines;
    if (line === undefined || line === '') throw new OnejobError('E_USAGE', 'Nothing was typed, so nothing was done.');
    if (lines.length > 1 || reader.line !== '') {
      throw new OnejobError('E_USAGE', 'Only one line can be typed here, but there were more.', {
        hint: 'Put the value into a file and give it on standard input: "onejob secret encrypt … <FILE".',
      });
    }
    return line;
  } finally {
    reader.close();
  }
}

/**
 * Public keys by what was given for an option: an `age1…` key, a PEM block, or a file of either or of private keys.
 * @throws OnejobError E_USAGE, E_SECRET_KEY
 */
export async function publicKeys({ context }: Session, given: string, option: string): Promise<PublicKey[]> {
  if (/^AGE-SECRET-KEY-|^-----BEGIN (?!(RSA )?PUBLIC)/.test(given.trim())) {
    throw new OnejobError('E_USAGE', `A private key was given for ${option}, where every user of this host could see it.`, {
      hint: "Give the public key or a file, and remove the private key from your shell's history.",
    });
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
  throw isOldFormat
    ? new OnejobError('E_SECRET_KEY', 'The key is not an RSA key, but the old format needs one.', {
        hint: 'Leave --seed-format out.',
      })
    : new OnejobError('E_SECRET_KEY', 'The key is an RSA key, which only the old format supports.', {
        hint: 'Make a new one with "onejob secret keygen", or write the old format with --seed-format.',
      });
}

/** @throws OnejobError E_USAGE */
export function checkName(name: string): string {
  if (name.startsWith('SECRET_')) {
    throw new OnejobError('E_USAGE', '--name begins with SECRET_, but onejob adds that prefix itself.', {
      hint: 'Give the name that the job sees.',
    });
  }
  if (variableName.test(name) && name.length <= longestName) return name;
  throw new OnejobError('E_USAGE', '--name is not a valid variable name.', {
    hint: 'Use letters, digits and _, such as CODECOV_TOKEN.',
  });
}

/** What a value is for; empty when nothing was said. @throws OnejobError E_USAGE */
export function pipelinesOf({ organization = [], organisation = [], pipeline = [] }: PipelineFlags): PipelinePattern[] {
  const organizations = [...organization, ...organisation];
  const hint =
    "Give them as in the address of the pipeline's page: --organization acme --pipeline solver, or --pipeline acme/solver.";
  if (pipeline.length === 0 && organizations.length > 0) {
    throw new OnejobError('E_USAGE', '--pipeline is missing: the organisation alone does not say which pipelines.', {
      hint: "Name them with --pipeline; use --pipeline '*' for all of them.",
    });
  }
  const all = pipeline.flatMap((each) => {
    if (each.includes('/')) return [each];
    if (organizations.length === 0) throw new OnejobError('E_USAGE', '--pipeline has no organisation.', { hint });
    return organizations.map((one) => `${one}/${each}`);
  });
  const bad = all.find((each) => parsePipeline(each) === null);
  if (bad !== undefined)
    throw new OnejobError('E_USAGE', `"${bad}" is not a valid pipeline: slugs are in lower case and have no blanks.`, { hint });
  return [...new Set(all)];
}

function readText(path: string, option: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const why =
      error instanceof Error && 'code' in error && error.code === 'ENOENT' ? 'there is no such file' : 'it cannot be read';
    throw new OnejobError('E_SECRET_KEY', `Cannot read the key of ${option} from ${path}: ${why}.`, {
      hint: 'Give a file with a public key, or the key itself: age1… .',
    });
  }
}
