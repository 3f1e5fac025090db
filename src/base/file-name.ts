/** Foreign texts, such as names of projects and keys of caches, as names of files that people can read: one text, one name. */
import { createHash } from 'node:crypto';

/** Letters of a name that are kept whole; a file system takes 255 bytes, and a prefix may be added. */
const longest = 220;
const kept = 100;

/** Never empty, hidden, `.` or `..`; no slash, no control character. A text that is too long ends in its hash. */
export function fileNameOf(text: string): string {
  const name = encodeURIComponent(text.toWellFormed()).replace(/^\.|^$/, (dot) => `%${dot === '' ? '' : '2E'}`);
  if (name.length <= longest) return name;
  // No text becomes a percent sign without digits, so a long text never has the name of a short one.
  return `${name.slice(0, kept).replace(/%.?$/, '')}%~${createHash('sha256').update(text).digest('hex')}`;
}

/** The text for people; of a long one its beginning. */
export function textOfFileName(name: string): string {
  const [start = '', hash] = name === '%' ? [''] : name.split('%~');
  const text = start.replace(/(?:%[0-9A-F]{2})+/g, (bytes) => Buffer.from(bytes.replaceAll('%', ''), 'hex').toString());
  return hash === undefined ? text : `${text}…`;
}
