/** Loads the page again when the daemon that serves it has become another version: its old page may not understand the new answers. */

const stored = 'onejob-versions';

export interface VersionParts {
  /** Of this tab. */
  readonly storage: Pick<Storage, 'getItem' | 'setItem'>;
  readonly reload: () => void;
}

/**
 * Returns a function that takes the version in each answer; the first one is the page's own. A tab is loaded again once for each
 * version, so two daemons behind one address, or a cache with an old page, cannot keep it reloading.
 */
export function watchVersion({ storage, reload }: VersionParts): (version: string) => void {
  let own: string | null = null;
  return (version) => {
    own ??= version;
    if (version === own) return;
    own = version;
    try {
      const before: unknown = JSON.parse(storage.getItem(stored) ?? '[]');
      const versions = Array.isArray(before) ? before : [];
      if (versions.includes(version)) return;
      storage.setItem(stored, JSON.stringify([...versions, version]));
    } catch {
      // A browser that keeps nothing could not end a loop.
      return;
    }
    reload();
  };
}
