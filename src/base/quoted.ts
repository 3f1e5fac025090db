/** Quotes a word for a shell if necessary. */
export function quoted(word: string): string {
  return /^[\w.-]+$/.test(word) ? word : inQuotes(word);
}

/** Any text but a NUL byte as one word of a POSIX shell. */
export function inQuotes(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
