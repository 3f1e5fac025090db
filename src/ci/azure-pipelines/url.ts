/** Addresses of Azure DevOps as people paste them: which part says where the agents belong. */

import { OnejobError } from '../../base/errors.ts';
import type { Parsed } from '../../base/units.ts';

/** Hosts of the hosted service; any other is Azure DevOps Server. */
const cloud = 'dev.azure.com';
const oldCloud = '.visualstudio.com';

/**
 * The address of an organisation or collection, without a slash at its end. Anything longer, such as the page of a pool, is refused
 * with the part to keep. No message contains a password of the address.
 */
export function parseAzureUrl(written: string): Parsed<string> {
  const text = written.trim();
  const no = (why: string) => ({ ok: false, why }) as const;
  const form = 'expected a web address such as "https://dev.azure.com/acme"';
  if (!/^https?:\/\//i.test(text)) {
    const bare = /^[A-Za-z0-9.-]+\.[A-Za-z]{2,}(\/[A-Za-z0-9._~%/-]*)?$/.test(text);
    return no(bare ? `has no "https://" in front; write "https://${text}"` : form);
  }
  const url = URL.parse(text);
  if (url === null || /\s/.test(text)) return no(form);
  const keep = essence(url);
  if (keep === null) return no(`does not name an organisation; write "${url.origin}/ORGANISATION"`);
  if (url.username !== '' || url.password !== '')
    return no(`must contain neither user nor password; keep "${keep}", and name the token with "token"`);
  const given = url.origin + url.pathname.replace(/\/+$/, '');
  if (given === keep && url.search === '' && url.hash === '') return { ok: true, value: keep };
  return no(`is more than the address of the ${isHosted(url) ? 'organisation' : 'collection'}; keep "${keep}"`);
}

/** The part that `parseAzureUrl` asks to keep, or null. */
export function azureUrlToKeep(written: string): string | null {
  const url = /^https?:\/\//i.test(written.trim()) ? URL.parse(written.trim()) : null;
  return url === null ? null : essence(url);
}

/** Whether an address is Microsoft's own service. */
export function isHostedAzure(url: string): boolean {
  return URL.canParse(url) && isHosted(new URL(url));
}

function isHosted({ hostname }: URL): boolean {
  return hostname === cloud || hostname.endsWith(oldCloud);
}

function essence(url: URL): string | null {
  const parts = url.pathname.split('/').filter((part) => part !== '');
  if (url.hostname === cloud) return parts[0] === undefined || parts[0].startsWith('_') ? null : `${url.origin}/${parts[0]}`;
  if (url.hostname.endsWith(oldCloud)) return url.origin;
  const page = parts.findIndex((part) => part.startsWith('_'));
  if (page === -1) return [url.origin, ...parts].join('/');
  // Pools of a whole collection are under _settings/agentpools and _apis; every other page stands under a project.
  const ofCollection = parts[page] === '_apis' || (parts[page] === '_settings' && parts[page + 1] !== 'agentqueues');
  return [url.origin, ...parts.slice(0, ofCollection ? page : Math.max(page - 1, Math.min(page, 1)))].join('/');
}

/** The address without a slash at its end, encoded. @throws OnejobError E_CONFIG, which never shows a password */
export function baseOf(url: string): string {
  const found = URL.parse(url.trim());
  if (found === null || !/^https?:$/.test(found.protocol)) {
    // It may be the token, by mistake.
    const hint = 'Write it as the browser shows it: https://dev.azure.com/ORGANISATION.';
    throw new OnejobError('E_CONFIG', 'The "url" of an azure-pipelines service is not an http or https address.', { hint });
  }
  if (found.username !== '' || found.password !== '') {
    throw new OnejobError('E_CONFIG', `The "url" of an azure-pipelines service contains a user or password for ${found.host}.`, {
      hint: 'Take it out of the address, and put the token into a file: token: { file: /path }.',
    });
  }
  return found.origin + found.pathname.replace(/\/+$/, '');
}
