/**
 * `onejob secret keygen`, `encrypt`, `decrypt` and `rotate`: values come from standard input or a hidden prompt. And `pins`, `allow`
 * and `forget`: which pipelines may use a value in the old format, for the daemon of this host.
 */
import { existsSync, realpathSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { OnejobError } from '../base/errors.ts';
import { formatTime } from '../base/units.ts';
import type { PinnedView } from '../contract/schema.ts';
import { listPipelines } from '../schema/pipelines.ts';
import { readSecret } from '../schema/secret-reference.ts';
import { toText } from '../secrets/encoding.ts';
import { makeKey, parseKeys, publicOf, type SecretKey } from '../secrets/keys.ts';
import { decryptSecret, formatOf, secretFingerprint } from '../secrets/open.ts';
import { alreadyThere, plainInText, type Rotation, replaceSecrets, rotateSecret } from '../secrets/rotate.ts';
import { looksSealed, seal } from '../secrets/sealed-format.ts';
import { encryptSeed } from '../secrets/seed-format.ts';
import { systemClock } from '../system/system-clock.ts';
import { withDaemon } from './connect.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { writePrivate } from './private-file.ts';
import {
  ask,
  checkName,
  encryptedIn,
  isTyped,
  keyFor,
  type PipelineFlags,
  pipelinesOf,
  privateKeys,
  publicKeys,
  readInput,
} from './secret-input.ts';
import type { Session } from './session.ts';
import { printable } from './text.ts';

export interface EncryptFlags extends PipelineFlags {
  readonly key: string;
  readonly name: string;
  readonly seedFormat?: boolean;
  readonly keepNewline?: boolean;
  readonly yaml?: boolean;
}

/** Prints only the encrypted value into a pipe, and the lines for the pipeline otherwise. */
export async function encrypt(session: Session, flags: EncryptFlags): Promise<number> {
  const { output } = session;
  const name = checkName(flags.name);
  const pipelines = pipelinesOf(flags);
  const isOld = flags.seedFormat === true;
  if (isOld && pipelines.length > 0) {
    const hint = 'Leave --seed-format out, or --organization and --pipeline.';
    throw wrongUsage('The old format cannot say which pipeline a value is for.', hint);
  }
  if (!isOld && pipelines.length === 0) {
    throw wrongUsage(
      '--pipeline is missing: it says which pipeline the value is for.',
      "Name it: --organization acme --pipeline solver. You can name several; use --pipeline '*' for all of an organisation.",
    );
  }
  const key = keyFor(await publicKeys(session, flags.key, '--key'), isOld);
  const value = await readValue(session, name, flags.keepNewline === true);
  const text = key.kind === 'rsa' ? await encryptSeed(key.key, value) : await seal(key, { name, pipelines, value });
  const variable = `SECRET_${name}`;
  if (output.json) await output.value({ variable, value: text, format: isOld ? 'seed' : 'sealed', key: key.id, pipelines });
  else if (flags.yaml === true || output.width !== null) await output.print('env:', `  ${variable}: "${text}"`);
  else await output.print(text);
  return exitCodes.ok;
}

async function readValue(session: Session, name: string, isExact: boolean): Promise<string> {
  if (isTyped(session)) {
    const { stdin, stderr } = session.context;
    return ask(stdin(), stderr, `Value of ${name} (not shown)`, { hidden: true });
  }
  const bytes = await readInput(session);
  const text = toText(bytes);
  if (text === null) {
    throw new OnejobError('E_SECRET_VALUE', 'Cannot encrypt the value: it is not UTF-8 text, or it contains a NUL byte.', {
      hint: 'Encode it first, for example with base64.',
    });
  }
  const value = isExact ? text : text.replace(/\r?\n$/, '');
  if (value !== '') return value;
  throw wrongUsage('Standard input has no value.', 'Type it at a terminal, or pipe it: "… | onejob secret encrypt …".');
}

/** Prints exactly the value, with a newline after it only on a terminal. */
export async function decrypt(session: Session, flags: { readonly key: string }): Promise<number> {
  const { output, context } = session;
  const keys = await privateKeys(session, flags.key);
  const typed = isTyped(session)
    ? await ask(context.stdin(), context.stderr, 'Encrypted value', { hidden: false })
    : (await readInput(session)).toString('latin1');
  const opened = await decryptSecret(encryptedIn(typed), keys);
  if (!opened.ok) {
    throw new OnejobError('E_SECRET_VALUE', `The value ${opened.why}.`, {
      hint: `Give the whole encrypted value, and the key it was made for. The keys here are ${keys.keys.map((each) => each.id).join(', ')}.`,
    });
  }
  const { value, format, sealed } = opened;
  if (output.json) await output.value({ value, format, name: sealed?.name ?? null, pipelines: sealed?.pipelines ?? null });
  else {
    if (sealed !== null) output.say(`this is ${sealed.name} for ${listPipelines(sealed.pipelines)}`);
    await output.write('stdout', Buffer.from(output.width === null ? value : `${value}\n`));
  }
  return exitCodes.ok;
}

export interface RotateFlags extends PipelineFlags {
  readonly key: string;
  readonly to: string;
  readonly name?: string;
  readonly seedFormat?: boolean;
}

/** Prints the text with each encrypted value re-encrypted for another key. 1 when a value could not be re-encrypted. */
export async function rotate(session: Session, flags: RotateFlags): Promise<number> {
  const { output } = session;
  const pipelines = pipelinesOf(flags);
  const name = flags.name === undefined ? null : checkName(flags.name);
  const to = keyFor(await publicKeys(session, flags.to, '--to'), flags.seedFormat === true);
  const from = await privateKeys(session, flags.key);
  if (isTyped(session)) {
    throw wrongUsage('Standard input is empty.', 'Give the text there: "onejob secret rotate … <pipeline.yml >new.yml".');
  }
  // As latin1, so that all other bytes stay the same.
  const given = (await readInput(session)).toString('latin1');
  const { text, replaced, already, left } = await rotated(given, { from, to, pipelines }, name);
  const notEncrypted = plainInText(given);
  if (output.json)
    await output.value({ text: Buffer.from(text, 'latin1').toString('utf8'), replaced, already, left, notEncrypted });
  else {
    await output.write('stdout', Buffer.from(text, 'latin1'));
    for (const { line, variable } of notEncrypted)
      output.say(`line ${line}: ${variable} is not encrypted: a job with it is refused`);
    for (const { line, variable, why } of left) output.say(`line ${line}: ${variable ?? 'the value'} ${why}; left unchanged`);
    const had = already === 0 ? '' : `, ${already} already for the new key`;
    output.say(`${replaced} ${replaced === 1 ? 'value' : 'values'} re-encrypted${had}, ${left.length} left unchanged`);
  }
  return left.length === 0 ? exitCodes.ok : exitCodes.failed;
}

async function rotated(given: string, rotation: Rotation, name: string | null) {
  const alone = given.trim();
  if (formatOf(alone) !== null || looksSealed(alone)) {
    const found = await rotateSecret(rotation, { name, text: alone });
    if ('text' in found) return { text: given.replace(alone, () => found.text), replaced: 1, already: 0, left: [] };
    const isThere = found.stays === alreadyThere;
    const left = isThere ? [] : [{ line: 1, variable: null, why: found.stays }];
    return { text: given, replaced: 0, already: isThere ? 1 : 0, left };
  }
  const { text, replaced, stayed } = await replaceSecrets(given, (secret) => rotateSecret(rotation, secret));
  const left = stayed
    .filter(({ why }) => why !== alreadyThere)
    .map((each) => ({ line: each.line, variable: `SECRET_${each.name}`, why: each.why }));
  return { text, replaced: replaced.length, already: stayed.length - left.length, left };
}

export type KeygenFlags = { readonly rsa?: boolean; readonly add?: boolean; readonly force?: boolean };

/** @throws OnejobError E_SECRET_KEY when the file exists, without `--add` or `--force` */
export async function keygen(
  session: Session,
  file: string,
  { rsa = false, add = false, force = false }: KeygenFlags,
): Promise<number> {
  const { output, context } = session;
  const named = resolve(context.cwd, file);
  // A link is kept: its target is written.
  const path = existsSync(named) ? realpathSync(named) : named;
  if (add && force) throw wrongUsage('--add and --force exclude each other: --add keeps the keys, --force overwrites them.');
  const exists = existsSync(path);
  if (exists && !add && !force) {
    const message = `Refusing to overwrite the existing file ${path}: only its keys can decrypt what was encrypted for them.`;
    const hint = 'Add a new key to it with --add, name another file, or overwrite it with --force.';
    throw new OnejobError('E_SECRET_KEY', message, { hint });
  }
  const day = new Date(systemClock.wall()).toISOString().slice(0, 10);
  const made = await makeKey(rsa ? 'rsa' : 'x25519', `onejob secret key, made ${day}`);
  const before = exists && add ? await keysIn(path) : '';
  const [key] = (await parseKeys(made)).keys as readonly [SecretKey];
  writePrivate(path, `${made}${before}`, {
    like: exists && add ? statSync(path) : null,
    over: exists,
    refusal: { code: 'E_SECRET_KEY', hint: 'Name a file in a folder that you can write to.' },
  });
  const publicKey = publicOf(key);
  const repository = repositoryOf(path);
  if (repository !== null)
    output.say(`${path} is in the git repository ${repository}: move it out of there, or it may be committed`);
  if (output.json) await output.value({ file: path, id: key.id, kind: key.kind, publicKey: publicKey.trimEnd() });
  else {
    const how = before === '' ? `wrote private key ${key.id} to` : `added private key ${key.id} in front of those in`;
    output.say(`${how} ${path}; its public key is on standard output`);
    await output.write('stdout', Buffer.from(publicKey));
  }
  return exitCodes.ok;
}

/** The git repository that contains a file; null if none does. */
function repositoryOf(path: string): string | null {
  for (let folder = dirname(path); ; folder = dirname(folder)) {
    if (existsSync(join(folder, '.git'))) return folder;
    if (folder === dirname(folder)) return null;
  }
}

/** The text of a key file that a key can be added to. */
async function keysIn(path: string): Promise<string> {
  const text = await readSecret({ kind: 'file', path, expires: null }, undefined, 'private key');
  await parseKeys(text, path);
  return `${text}\n`;
}

export interface PinFlags extends PipelineFlags {
  readonly valueFromStdin?: boolean;
}

export async function listPins(session: Session): Promise<number> {
  const { output } = session;
  const pins = await withDaemon(session, async ({ secrets }) => secrets.pins());
  if (output.json) for (const pin of pins) await output.value(pin);
  else if (pins.length === 0) output.say('no value in the old format has been used yet');
  else await output.print(...pins.flatMap((pin) => pinLines(pin, systemClock.wall())).map(printable));
  return exitCodes.ok;
}

export async function allow(session: Session, fingerprint: string | null, flags: PinFlags): Promise<number> {
  const pipelines = pipelinesOf(flags);
  if (pipelines.length === 0) {
    const message = '--pipeline is missing: it says which pipeline may use the value.';
    throw wrongUsage(message, 'Name it, such as --pipeline acme/solver.');
  }
  const { output } = session;
  const asked = await chosen(session, fingerprint, flags);
  const pin = await withDaemon(session, async ({ secrets }) => secrets.allow(asked, pipelines));
  const names = listPipelines(pin.pipelines.map((each) => each.pipeline));
  await output.result(pin, () => [`${pin.fingerprint} may be used by ${names}.`]);
  return exitCodes.ok;
}

export async function forget(session: Session, fingerprint: string | null, flags: PinFlags): Promise<number> {
  const pipelines = pipelinesOf(flags);
  const { output } = session;
  const asked = await chosen(session, fingerprint, flags);
  const forgotten = await withDaemon(session, async ({ secrets }) => {
    let count = 0;
    for (const each of pipelines.length === 0 ? [null] : pipelines) count += (await secrets.forget(asked, each)).forgotten;
    return count;
  });
  await output.result({ fingerprint: asked, forgotten }, () => {
    if (forgotten === 0) return [`${asked} is not pinned to ${pipelines.length === 0 ? 'anything' : listPipelines(pipelines)}.`];
    if (pipelines.length === 0) return [`${asked} is forgotten: the next pipeline that uses it becomes its owner.`];
    return [`${asked} is no longer for ${listPipelines(pipelines)}.`];
  });
  return exitCodes.ok;
}

async function chosen(session: Session, fingerprint: string | null, flags: PinFlags): Promise<string> {
  if (flags.valueFromStdin === true && fingerprint !== null) {
    throw wrongUsage('A fingerprint and --value-from-stdin exclude each other.');
  }
  if (flags.valueFromStdin !== true) {
    if (fingerprint !== null && /^[0-9a-f]{8,32}$/.test(fingerprint)) return fingerprint;
    const hint = 'Give its fingerprint from "onejob secret pins", or the encrypted value with --value-from-stdin.';
    throw wrongUsage(fingerprint === null ? 'The value is missing.' : whyInvalid(fingerprint), hint);
  }
  const text = encryptedIn((await readInput(session)).toString('latin1'));
  const format = formatOf(text);
  if (format === 'sealed') {
    const message = 'The value itself says which pipelines it is for, so no other pipeline can be allowed.';
    throw wrongUsage(message, 'Encrypt it again with another --pipeline.');
  }
  if (format !== null) return secretFingerprint(text);
  throw wrongUsage('There is no encrypted value on standard input, or it is damaged.');
}

function whyInvalid(typed: string): string {
  if (/^[0-9a-f]{1,7}$/.test(typed)) return `A fingerprint needs at least 8 digits; got ${typed.length}.`;
  return 'Invalid fingerprint: it must have 8 to 32 digits, 0 to 9 and a to f.';
}

/** A value, and below it who may use it. `now`: wall clock, ms. */
function pinLines({ fingerprint, name, pipelines }: PinnedView, now: number): string[] {
  return [
    `${fingerprint}${name === null ? '' : `  SECRET_${name}`}`,
    ...pipelines.map(
      ({ pipeline, origin, at }) => `  ${pipeline}  ${origin === 'used' ? 'used it first' : 'was allowed'}, ${formatTime(at, now)}`,
    ),
  ];
}
