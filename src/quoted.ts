/** A word as one types it in a shell: in quotes only where it needs them. */
export function quoted(word: string): string {
  return /^[\w.-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
