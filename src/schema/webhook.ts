/** Which addresses a webhook may have. They often are secrets themselves, so no text here contains one. */
import { clearTextHost } from '../http/address.ts';

/** What is wrong with the address, as the end of a sentence; null if it may be used. */
export function webhookProblem(address: string): string | null {
  const url = URL.parse(address);
  if (url === null || (url.protocol !== 'https:' && url.protocol !== 'http:')) return 'is not an https:// address';
  if (url.username !== '' || url.password !== '') return 'has a user and a password in it, which no HTTP client sends; remove them';
  if (clearTextHost(address) !== null)
    return 'is not encrypted; write https (http is allowed only for this host, such as 127.0.0.1)';
  return null;
}

/** The address without what may be secret: `https://hooks.example`. */
export function webhookHost(address: string): string {
  return URL.parse(address)?.origin ?? 'an invalid address';
}

/** Whether the path or query contains what looks like a token. */
export function looksSecret(address: string): boolean {
  const url = URL.parse(address);
  return (
    url !== null &&
    clearTextHost(address.replace('https:', 'http:')) !== null &&
    /[A-Za-z0-9_-]{20,}/.test(url.pathname + url.search)
  );
}
