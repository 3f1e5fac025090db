/**
 * The metadata server, of the machine that onejob runs on, and of each instance at `/machines/NAME`, since one address cannot be
 * that of all of them here.
 */
import type { Machine } from './machines.ts';
import type { Said } from './refused.ts';

export interface MetadataParts {
  readonly project: string;
  machine(name: string): Machine | undefined;
  /** A token of the service account. */
  issue(): string;
}

/** null: the path is of something else. */
export function metadataOf(path: string, flavor: string | null, { project, machine, issue }: MetadataParts): Said | null {
  const [, name, key] = /^(?:\/machines\/([a-z0-9-]+))?\/computeMetadata\/v1\/(.+)$/.exec(path) ?? [];
  if (key === undefined) return null;
  const text = (status: number, said: string): Said => ({ status, json: null, text: said });
  if (flavor !== 'Google') return text(403, 'Missing Metadata-Flavor:Google header.');
  if (name === undefined)
    return key === 'instance/service-accounts/default/token'
      ? { status: 200, json: { access_token: issue(), expires_in: 3599, token_type: 'Bearer' } }
      : text(404, 'Not found.');
  const found = machine(name);
  if (found === undefined) return text(404, 'No such machine.');
  const attribute = /^instance\/attributes\/(.+)$/.exec(key)?.[1];
  const values: Readonly<Record<string, string | undefined>> = {
    'instance/name': found.name,
    'instance/zone': `projects/${project}/zones/${found.zone}`,
    'instance/preempted': found.isPreempted ? 'TRUE' : 'FALSE',
  };
  const value = attribute === undefined ? values[key] : found.metadata[attribute];
  // No service account: there is no token either.
  return value === undefined ? text(404, 'Not found.') : text(200, value);
}
