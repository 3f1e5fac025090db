/** The archive of a release: its bytes are checked before anything of it is used. */

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { attempt, OnejobError } from '../base/errors.ts';
import { checkConfig, configError } from '../config/load.ts';
import { minisignKey, signatureProblem } from '../system/minisign.ts';
import { type ServiceFacts, sourceOfService } from './service-config.ts';
import { configSource, type Session } from './session.ts';
import { types } from './types.ts';

export const howToSign =
  'Sign the archive with "minisign -S -m ARCHIVE" or "npm run release -- --sign KEY", and put the .minisig next to it.';

/**
 * The key that archives are signed with, by the config that the command names, else by that of the service; null: none is needed.
 * A config in which it may be and cannot be read is not one without a key.
 */
export async function upgradeKey(session: Session, service: ServiceFacts): Promise<string | null> {
  const given = configSource(session);
  const source = given.flags.config === undefined ? sourceOfService(service, given.env) : given;
  const { config, errors } = await checkConfig({ types, ...source, look: null, gpus: false });
  if (config.upgradeKey === null && errors.length > 0) {
    const hint = 'It may say which key archives are signed with. Fix the problems that are listed, then type the command again.';
    throw configError(errors, null, hint);
  }
  return config.upgradeKey;
}

const problem = (message: string, hint?: string) => new OnejobError('E_SERVICE', message, { hint });

/** The bytes of an archive that is what SHA256SUMS and, with a key, its signature say. @throws OnejobError E_SERVICE, E_SIGNATURE */
export function checkedArchive(archive: string, key: string | null, say: (line: string) => void): Buffer {
  const bytes = attempt(() => readFileSync(archive));
  if (bytes === null) throw problem(`Cannot read ${archive}.`);
  if (key !== null) checkSignature(archive, bytes, key);
  const sums = attempt(() => readFileSync(join(dirname(archive), 'SHA256SUMS'), 'utf8'));
  const line = sums?.split('\n').find((one) => one.endsWith(`  ${basename(archive)}`));
  const sum = createHash('sha256').update(bytes).digest('hex');
  if (line !== undefined && !line.startsWith(sum))
    throw problem(`${archive} is not the archive that SHA256SUMS next to it names: its sha256 is ${sum}.`);
  if (line === undefined && key === null) say(`${archive} was not checked: there is no SHA256SUMS next to it that names it`);
  return bytes;
}

function checkSignature(archive: string, bytes: Buffer, written: string): void {
  const refused = (why: string, hint: string) =>
    new OnejobError('E_SIGNATURE', `Refused to install ${archive}: ${why}. Nothing was changed.`, { hint });
  const key = minisignKey(written);
  if (key === null) throw refused('"upgrade.key" of the config is not a public key of minisign', 'Type "onejob config check".');
  const signature = attempt(() => readFileSync(`${archive}.minisig`, 'utf8'));
  if (signature === null)
    throw refused(`it is not signed: cannot read ${archive}.minisig, and the config has "upgrade.key"`, howToSign);
  const why = signatureProblem({ name: basename(archive), bytes, signature }, key);
  if (why !== null)
    throw refused(why, 'Get the archive and its .minisig again, from who has the key in "upgrade.key" of the config.');
}
