/** Our tags on things of EC2, and what a list says of them. */
import { type Birth, type Offer, type Thing, type ThingKind, tagKeys } from '../cloud.ts';
import type { Params } from './calls.ts';
import { itemsAt, textAt, type Xml } from './xml.ts';

/** For `TagSpecification`. `Name` is for people who look at the console. */
export function tagsOf({ owner, run, host, born, expires }: Birth): Params[] {
  const tags = {
    ...{ Name: run, [tagKeys.owner]: owner, [tagKeys.run]: run, [tagKeys.host]: host },
    ...{ [tagKeys.born]: born, [tagKeys.expires]: expires },
  };
  return Object.entries(tags).map(([Key, Value]) => ({ Key, Value: String(Value) }));
}

/** Filter for everything of one owner. */
export const ofOwner = (owner: string): Params[] => [{ Name: `tag:${tagKeys.owner}`, Value: [owner] }];

const runForm = /^onejob-[0-9a-f]{16}$/;

interface Place {
  readonly kind: ThingKind;
  readonly id: string;
  readonly place: string;
  readonly state: Thing['state'];
  readonly offer?: Offer | null;
}

/** What a list says of a thing. A run in another form than ours is not ours. */
export function thingOf(xml: Xml, { offer = null, ...of }: Place): Thing {
  const tags = new Map(itemsAt(xml, 'tagSet').map((tag) => [textAt(tag, 'key'), textAt(tag, 'value')]));
  const number = (key: string): number | null => {
    const text = tags.get(key) ?? '';
    return text !== null && /^\d{1,12}$/.test(text) ? Number(text) : null;
  };
  const run = tags.get(tagKeys.run) ?? null;
  return {
    ...of,
    offer,
    run: run !== null && runForm.test(run) ? run : null,
    host: tags.get(tagKeys.host) ?? null,
    born: number(tagKeys.born),
    expires: number(tagKeys.expires),
  };
}
