/** Times of files in a tar. */

/** Seconds that fit into a header as tar-stream writes it. */
const most = 2 ** 31 - 1;

/** The fields of a header for a time in seconds since 1970. One before 1970 or after 2038 is in an extended header. */
export function timeOf(seconds: number): { mtime: Date; pax?: { mtime: string } } {
  const shown = Math.min(Math.max(0, seconds), most);
  const mtime = new Date(shown * 1000);
  return shown === seconds ? { mtime } : { mtime, pax: { mtime: String(seconds) } };
}
