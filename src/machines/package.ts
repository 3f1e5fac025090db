/** The archive of onejob that machines install: where it is, and its checksum. People replace it while the daemon runs. */
import { createHash } from 'node:crypto';
import { createReadStream, statSync } from 'node:fs';
import { attempt, messageOf, OnejobError, toFailure } from '../base/errors.ts';
import type { JoinConfig } from '../config/config.ts';
import { isReachable } from '../system/file-server.ts';

interface Archive {
  /** null: the controller serves it. */
  readonly url: string | null;
  readonly sha256: string;
  /** When its file was changed, ms. */
  readonly changedAt: number;
}

export class MachinePackage {
  readonly #config: Pick<JoinConfig, 'package' | 'sha256'>;
  /** A string: why it cannot be used. */
  #archive: Archive | string = '';

  constructor(config: Pick<JoinConfig, 'package' | 'sha256'>) {
    this.#config = config;
  }

  /** Why machines cannot install it; null: they can. */
  get problem(): string | null {
    return typeof this.#archive === 'string' ? this.#archive : null;
  }

  /** @throws OnejobError E_CONFIG */
  get archive(): Archive {
    if (typeof this.#archive === 'string') throw new OnejobError('E_CONFIG', this.#archive);
    return this.#archive;
  }

  /** A file that the controller serves; null: machines fetch it from its own address. */
  get file(): string | null {
    return this.#isRemote ? null : this.#config.package;
  }

  get #isRemote(): boolean {
    return this.#config.package.startsWith('https:');
  }

  /** Never fails. */
  async read(): Promise<void> {
    this.#archive = await this.#find().catch((error: unknown) => toFailure(error).message);
  }

  /** Reads it again if another file has come in its place. */
  async refresh(): Promise<void> {
    const place = this.#config.package;
    if (this.#isRemote || !(await isReachable(place))) return;
    const changedAt = attempt(() => statSync(place).mtimeMs);
    const known = typeof this.#archive === 'string' ? null : this.#archive.changedAt;
    if (changedAt !== known) await this.read();
  }

  /** @throws OnejobError E_CONFIG */
  async #find(): Promise<Archive> {
    const { package: place, sha256 } = this.#config;
    if (this.#isRemote) return { url: place, sha256: sha256 ?? '', changedAt: 0 };
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
}
