/** The archive of onejob that machines install: where it is, and its checksum. People replace it while the daemon runs. */
import { createHash } from 'node:crypto';
import { createReadStream, statSync } from 'node:fs';
import { attempt, messageOf, OnejobError, toFailure } from '../base/errors.ts';
import type { JoinConfig } from '../config/config.ts';
import { isReachable } from '../system/file-server.ts';

type PackageConfig = Pick<JoinConfig, 'package' | 'sha256'>;

export interface Archive {
  /** null: the controller serves it. */
  readonly url: string | null;
  readonly sha256: string;
  /** When its file was changed, ms. */
  readonly changedAt: number;
}

/** A file that the controller serves; null: machines fetch it from its own address. */
export const servedFile = ({ package: place }: PackageConfig): string | null => (place.startsWith('https:') ? null : place);

/** The archive, or why machines cannot install it. Never fails. */
export const readArchive = (config: PackageConfig): Promise<Archive | string> =>
  archiveOf(config).catch((error: unknown) => toFailure(error).message);

/** Whether another file has come in its place. */
export async function isOutdated(archive: Archive | string, config: PackageConfig): Promise<boolean> {
  const place = servedFile(config);
  if (place === null || !(await isReachable(place))) return false;
  const changedAt = attempt(() => statSync(place).mtimeMs);
  return changedAt !== (typeof archive === 'string' ? null : archive.changedAt);
}

/** @throws OnejobError E_CONFIG */
async function archiveOf({ package: place, sha256 }: PackageConfig): Promise<Archive> {
  if (place.startsWith('https:')) return { url: place, sha256: sha256 ?? '', changedAt: 0 };
  const hash = createHash('sha256');
  let changedAt: number;
  try {
    if (!(await isReachable(place))) throw new Error('its file server does not answer');
    changedAt = statSync(place).mtimeMs;
    for await (const piece of createReadStream(place)) hash.update(piece);
  } catch (error) {
    throw new OnejobError('E_CONFIG', `Cannot read the package for machines, ${place}: ${messageOf(error)}.`, {
      hint: 'Put a release archive of onejob there, or change "join.package".',
    });
  }
  return { url: null, sha256: hash.digest('hex'), changedAt };
}
