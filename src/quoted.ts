/** A word as a person types it in a shell: in quotes only where it needs them. */
export function quoted(word: string): string {
  return /^[\w.-]+$/.test(word) ? word : inQuotes(word);
}

/** Any text but a NUL byte as one word of a POSIX shell. */
export function inQuotes(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
