/** Versions of drivers and of CUDA: numbers between dots, of any count; `570.26` is older than `570.133.20`. */

/** The version that a text begins with, such as `610.57.04` of `610.57.04 [Deprecated …`; null where it begins with none. */
export function leadingVersion(text: string | null): string | null {
  return text === null ? null : (/^\d{1,6}(?:\.\d{1,6}){0,3}/.exec(text.trim())?.[0] ?? null);
}

/** Below 0 when `one` is older, 0 when they are the same; a number that is not there counts as 0. */
export function compareVersions(one: string, other: string): number {
  const [ours, theirs] = [one.split('.').map(Number), other.split('.').map(Number)];
  for (let at = 0; at < Math.max(ours.length, theirs.length); at++) {
    const difference = (ours[at] ?? 0) - (theirs[at] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** First number of a version: the branch of a driver, the family of a CUDA. */
export function major(version: string): number {
  return Number(version.split('.')[0]);
}

/** The newest of them; null of none. */
export function newest(versions: readonly string[]): string | null {
  return versions.toSorted(compareVersions).at(-1) ?? null;
}

/** The oldest of them; null of none. */
export function oldest(versions: readonly string[]): string | null {
  return versions.toSorted(compareVersions)[0] ?? null;
}
