/** Our tags on things, as every cloud has them. */
import { type Birth, runName, type Thing, tagKeys } from '../../ports/cloud.ts';

export type Tags = Readonly<Record<string, string | undefined>>;

export function tagsOf({ owner, run, host, born, expires }: Birth): Record<string, string> {
  return {
    [tagKeys.owner]: owner,
    [tagKeys.run]: run,
    [tagKeys.host]: host,
    [tagKeys.born]: String(born),
    [tagKeys.expires]: String(expires),
  };
}

/** What tags say. A run in another form than ours is not ours. */
export function told(tags: Tags): Pick<Thing, 'run' | 'host' | 'born' | 'expires'> {
  const { [tagKeys.run]: run = '', [tagKeys.host]: host = null, [tagKeys.born]: born, [tagKeys.expires]: expires } = tags;
  return { run: runName.test(run) ? run : null, host, born: secondsOf(born), expires: secondsOf(expires) };
}

const secondsOf = (text = ''): number | null => (/^\d{1,12}$/.test(text) ? Number(text) : null);
