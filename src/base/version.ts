/** Versions of drivers and of CUDA: any count of numbers between dots; `570.26` is older than `570.133.20`. */

/** The version at the beginning of a text, such as `610.57.04` of `610.57.04 [Deprecated …`; null without one. */
export function leadingVersion(text: string | null): string | null {
  return text === null ? null : (/^\d{1,6}(?:\.\d{1,6}){0,3}/.exec(text.trim())?.[0] ?? null);
}

/** Negative when `one` is older, 0 when they are equal; a missing number counts as 0. */
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

export function newest(versions: readonly string[]): string | null {
  return versions.toSorted(compareVersions).at(-1) ?? null;
}

export function oldest(versions: readonly string[]): string | null {
  return versions.toSorted(compareVersions)[0] ?? null;
}
