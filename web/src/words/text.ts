/** Foreign text, times and numbers for people. */
export { formatAge, plural } from '../../../src/cli/text.ts';

/** Characters of foreign text that are shown, so that nobody can fill a page. */
const longest = 600;

/** Foreign text in one line: without control characters, and without those that change the direction of what follows. */
export function plain(text: string): string {
  const cut = text.length > longest ? `${text.slice(0, longest)}…` : text;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken out
  return cut.replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ').replace(/[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, '\ufffd');
}

/** `12:03:10`, and with its day if that is not the day of `now`. Wall clock, ms. */
export function clockText(at: number, now: number): string {
  const [date, today] = [new Date(at), new Date(now)];
  const time = date.toLocaleTimeString('en-GB');
  if (date.toDateString() === today.toDateString()) return time;
  const year = date.getFullYear() === today.getFullYear() ? {} : ({ year: 'numeric' } as const);
  return `${date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short', ...year })}, ${time.slice(0, 5)}`;
}

/** A range of waiting, ms: `in 2 to 9 min`. Rounded outwards, so that it promises no more than was said. */
export function rangeText(from: number, to: number): string {
  if (to <= 0) return 'at once';
  if (to <= 60_000) return 'within a minute';
  const [unit, word] = to >= 2 * 3_600_000 ? [3_600_000, 'h'] : [60_000, 'min'];
  const [least, most] = [Math.floor(from / unit), Math.ceil(to / unit)];
  return least === 0 ? `within ${most} ${word}` : least === most ? `in ${most} ${word}` : `in ${least} to ${most} ${word}`;
}

/** `38.2 / 79.6 GiB`, without unknown parts; empty if both are unknown. */
export function memoryText(used: number | null, total: number | null): string {
  const gib = (mib: number) => (mib / 1024).toFixed(mib < 102_400 ? 1 : 0);
  if (total === null) return used === null ? '' : `${gib(used)} GiB used`;
  return used === null ? `${gib(total)} GiB` : `${gib(used)} / ${gib(total)} GiB`;
}

/** `1.2 GiB`. */
export function bytesText(bytes: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  const at = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${at === 0 ? bytes : (bytes / 1024 ** at).toFixed(1)} ${units[at]}`;
}

/** The address of a foreign link; null unless it is a page. */
export function pageAddress(link: string | null | undefined): string | null {
  if (!link || !URL.canParse(link)) return null;
  return /^https?:$/.test(new URL(link).protocol) ? link : null;
}

/** `GPU-5f3a1c2e…`: enough to tell devices apart. */
export function shortUuid(uuid: string): string {
  return uuid.length > 14 ? `${uuid.slice(0, 12)}…` : uuid;
}
