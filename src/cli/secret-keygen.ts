/** `onejob secret keygen`: a new private key in a file, and its public key on standard output. */
import { existsSync, realpathSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { OnejobError } from '../errors.ts';
import { makeKey, parseKeys, publicOf, type SecretKey } from '../secrets/keys.ts';
import { readSecret } from '../secrets/reference.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { writePrivate } from './private-file.ts';
import type { Session } from './session.ts';

export interface KeygenFlags {
  readonly rsa?: boolean;
  readonly add?: boolean;
  readonly force?: boolean;
}

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
  const day = new Date().toISOString().slice(0, 10);
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
    output.say(`${how} ${path}; its public key is:`);
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
