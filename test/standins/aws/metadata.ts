/**
 * The metadata service (IMDSv2) of each machine at `/machines/ID`, since one address cannot be that of all of them here: a token from a
 * PUT, and tags where the machine was made to show them. From the EC2 user guide, "View tags for your EC2 instances using instance
 * metadata".
 */
import { randomBytes } from 'node:crypto';
import type { Asked, Said } from './wire.ts';
import type { Machine } from './world.ts';

const text = (status: number, said = ''): Said => ({ status, type: 'text/plain', text: said });

export function createMetadata(machineOf: (id: string) => Machine | undefined, now: () => number) {
  /** Until when each token is good, by machine and token. */
  const tokens = new Map<string, number>();

  /** null: the path is of something else. */
  return ({ method, url, headers }: Asked): Said | null => {
    const [, id = '', path] = /^\/machines\/(i-[0-9a-f]+)\/latest\/(.+)$/.exec(url.pathname) ?? [];
    if (path === undefined) return null;
    const machine = machineOf(id);
    if (machine === undefined) return text(404);
    if (path === 'api/token') {
      const seconds = Number(headers.get('X-aws-ec2-metadata-token-ttl-seconds') ?? Number.NaN);
      if (method !== 'PUT') return text(405);
      if (!(seconds >= 1 && seconds <= 21_600)) return text(400);
      const token = randomBytes(32).toString('base64url');
      tokens.set(`${id} ${token}`, now() + seconds * 1000);
      return text(200, token);
    }
    if (!((tokens.get(`${id} ${headers.get('X-aws-ec2-metadata-token')}`) ?? 0) > now())) return text(401);
    const [, key] = /^meta-data\/tags\/instance\/([^/]+)$/.exec(path) ?? [];
    const value = key === undefined || machine.metadata.tags !== 'enabled' ? undefined : machine.shownTags[key];
    return value === undefined ? text(404) : text(200, value);
  };
}
