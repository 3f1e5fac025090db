/** Addresses of an organisation or a collection. */
import { clearTextHost } from '../../config/service-keys.ts';
import { OnejobError } from '../../errors.ts';

/**
 * The address without a slash at its end, encoded.
 * @throws OnejobError E_CONFIG, which does not show the address when it holds a password
 */
export function baseOf(url: string): string {
  const found = URL.parse(url.trim());
  if (found === null || !/^https?:$/.test(found.protocol)) {
    // What stands here by mistake may be the token.
    throw new OnejobError('E_CONFIG', 'The "url" of an azure-pipelines service is not an http or https address.', {
      hint: 'Write it as the browser shows it: https://dev.azure.com/ORGANISATION.',
    });
  }
  if (found.username !== '' || found.password !== '') {
    throw new OnejobError('E_CONFIG', `The "url" of an azure-pipelines service holds a user or password for ${found.host}.`, {
      hint: 'Take it out of the address, and put the token into a file: token: { file: /path }.',
    });
  }
  return found.origin + found.pathname.replace(/\/+$/, '');
}

/** For `describe`: a warning where the credential could be read on its way. */
export function openness(base: string): string {
  return clearTextHost(base) === null ? '' : `, sent in the clear to ${new URL(base).host}`;
}

/** An address for people: without what follows `?` or `#`, which may hold something secret. */
export function shown(url: string): string {
  const found = URL.parse(url);
  return found === null ? 'an address that cannot be read' : found.origin + found.pathname;
}
