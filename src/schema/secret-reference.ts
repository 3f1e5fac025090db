/** References to secrets. The value is read when it is used, is not kept here, and is in no message. */

import { dirname } from 'node:path';
import { codeOf, messageOf, OnejobError } from '../base/errors.ts';
import type { Variables } from '../base/variables.ts';
import { readSmall, ServerAway } from '../system/small-file.ts';

export type SecretReference = {
  /** Last day on which the secret is valid, ms since the epoch; null when not configured. */
  readonly expires: number | null;
} & (
  | { readonly kind: 'file'; readonly path: string }
  | { readonly kind: 'env'; readonly variable: string }
  /** In no file: `name` tells people where it came from, such as `the command line`. */
  | { readonly kind: 'memory'; readonly name: string; read(): string }
);

/** Longest secret, in bytes. */
const longest = 64 * 1024;

export function describeSecret(reference: SecretReference): string {
  const place = secretPlace(reference);
  return reference.expires === null ? place : `${place}, expires ${new Date(reference.expires).toISOString().slice(0, 10)}`;
}

/** Where it is, for people: `file /p`. */
export function secretPlace(reference: SecretReference): string {
  if (reference.kind === 'memory') return reference.name;
  return reference.kind === 'file' ? `file ${reference.path}` : `environment variable ${reference.variable}`;
}

/** What a person must do to change the value, as the beginning of a sentence: `Put it into file /p`. */
export function howToReplace(reference: SecretReference): string {
  if (reference.kind === 'memory') return 'Restart onejob with it';
  if (reference.kind === 'env') return `Set environment variable ${reference.variable} to it and restart onejob`;
  return `Put it into file ${reference.path}; onejob reads it again automatically`;
}

/** The value without a newline at its end. @throws OnejobError E_SECRET when it is missing, unreadable, empty or over 64 KiB */
export async function readSecret(
  reference: SecretReference,
  variables: Variables = process.env,
  what: 'secret' | 'private key' = 'secret',
): Promise<string> {
  const title = what === 'secret' ? 'secret' : 'key';
  if (reference.kind === 'env') {
    const value = variables[reference.variable];
    if (value !== undefined && value !== '') return value;
    const why = `the variable is ${value === undefined ? 'not set' : 'empty'}`;
    throw new OnejobError('E_SECRET', `The ${title} in environment variable ${reference.variable} is missing: ${why}.`, {
      hint: `Set ${reference.variable} for the manager, or name a file instead: { file: /path }.`,
    });
  }
  if (reference.kind === 'memory') {
    const value = reference.read();
    if (value !== '') return value;
    throw new OnejobError('E_SECRET', `The ${title} on ${reference.name} is empty.`, { hint: 'Restart onejob with one.' });
  }
  const found = await inspect(reference.path);
  if (found.problem !== null) {
    throw new OnejobError('E_SECRET', `The ${title} file ${reference.path} ${found.problem}.`, {
      ...(found.isAway && { retry: true }),
      hint: found.isAway
        ? `Type "ls ${dirname(reference.path)}" to see whether it answers.`
        : `Put the ${what} into ${reference.path}, readable only for the user that onejob runs as (mode 600).`,
    });
  }
  const value = found.text.replace(/\r?\n$/, '');
  if (value === '') throw new OnejobError('E_SECRET', `The ${title} file ${reference.path} contains only an empty line.`);
  return value;
}

/**
 * Whether the secret can be read, who else can, and whether it expires within 14 days of `now` (ms since the epoch). Each problem is
 * the end of a sentence, without the value.
 */
export async function checkSecret(reference: SecretReference, now: number, variables: Variables = process.env) {
  const warnings: { readonly state: 'expires' | 'expired' | 'open'; readonly text: string }[] = [];
  if (reference.expires !== null) {
    const days = Math.floor((reference.expires - now) / 86_400_000);
    const day = new Date(reference.expires).toISOString().slice(0, 10);
    const left = days === 0 ? 'today' : days === 1 ? 'in a day' : `in ${days} days`;
    if (days < 0) warnings.push({ state: 'expired', text: `expired on ${day}; create a new one and change the date` });
    else if (days < 14) warnings.push({ state: 'expires', text: `expires on ${day}, ${left}; create a new one in time` });
  }
  if (reference.kind === 'env') {
    const value = variables[reference.variable];
    const problem = value === undefined ? 'is not set' : value === '' ? 'is empty' : null;
    return { problem: problem && `environment variable ${reference.variable} ${problem}`, isAway: false, warnings };
  }
  if (reference.kind === 'memory')
    return { problem: reference.read() === '' ? `${reference.name} has an empty one` : null, isAway: false, warnings };
  const found = await inspect(reference.path);
  if (found.mode !== null && (found.mode & 0o007) !== 0) {
    const mode = found.mode.toString(8).padStart(3, '0');
    const text = `${reference.path} can be used by every user of this host (mode ${mode}); run "chmod 600 ${reference.path}"`;
    warnings.push({ state: 'open', text });
  }
  return { problem: found.problem && `${reference.path} ${found.problem}`, isAway: found.isAway, warnings };
}

interface Inspected {
  /** The end of a sentence about the file; null: it holds a secret. */
  readonly problem: string | null;
  readonly mode: number | null;
  readonly text: string;
  /** Whether its file server does not answer: nobody knows what it holds. */
  readonly isAway: boolean;
}

async function inspect(path: string): Promise<Inspected> {
  const nothing = { mode: null, text: '', isAway: false };
  try {
    const { isFile, size, mode, text } = await readSmall(path, longest);
    if (!isFile) return { ...nothing, problem: 'is not a file' };
    if (size === 0) return { ...nothing, mode, problem: 'is empty' };
    if (size > longest) return { ...nothing, mode, problem: 'is larger than 64 KiB' };
    return { ...nothing, mode, text, problem: variableIn(text) };
  } catch (error) {
    const isAway = error instanceof ServerAway;
    return { ...nothing, isAway, problem: isAway ? `cannot be read: ${error.message}` : unreadable(error) };
  }
}

/** A line of a shell or of a file of variables, where the value alone is needed: each service would only say that it is wrong. */
function variableIn(text: string): string | null {
  const [, name] = /^(?:#[^\n]*\n|\s)*(?:export\s+)?(\w*(?:token|key|secret|password|pat))[ \t]*=[ \t]*[^=\s]/i.exec(text) ?? [];
  return name === undefined ? null : `contains a variable (${name}=…); it must contain only the value`;
}

/** Why a file cannot be read, as the end of a sentence about it. */
export function unreadable(error: unknown): string {
  const code = codeOf(error);
  if (code === 'ENOENT' || code === 'ENOTDIR') return 'does not exist';
  if (code === 'EACCES' || code === 'EPERM') return 'cannot be read by this user';
  return `cannot be read (${messageOf(error)})`;
}
