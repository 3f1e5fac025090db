/**
 * Decides who is told what: compares what is wrong now with what people were told. Pure. One message for each cause, however often
 * it is seen, and one when it is over; a cause that comes and goes stays one cause. It
 * must last before it is announced, and that begins anew after a pause. What cannot be seen is not over (S6).
 */

export type CauseKind = 'device' | 'credential' | 'service' | 'runtime' | 'pool' | 'disk';

/** Something that needs a person. */
export interface Cause {
  /** The same cause has the same key at every look. */
  readonly key: string;
  readonly kind: CauseKind;
  /** What it is about, such as `pool lab`. */
  readonly subject: string;
  /** A sentence. */
  readonly message: string;
  /** What to do about it, as a sentence; null if the message says it. */
  readonly hint: string | null;
  /** People are told again when it grows: 1 is worse than 0. */
  readonly stage: number;
  /** ms that it must last before anybody is told: most trouble passes by itself. */
  readonly patience: number;
}

/** What is wrong now. */
export interface Seen {
  readonly causes: readonly Cause[];
  /** Kinds that cannot be judged now: none of their causes is over. */
  readonly blind: ReadonlySet<CauseKind>;
}

export type ToldNotices = Omit<Cause, 'patience'> & {
  /** When it was first seen, wall clock, ms. */
  readonly since: number;
  /**
   * `announcing`, `ending`: the message about it, or about its end, is to be sent, and may have been sent. `announced`: people
   * know of it.
   */
  readonly state: 'announcing' | 'announced' | 'ending';
  /** When that was decided, wall clock, ms. */
  readonly at: number;
};

/** A cause, and what people were told about it. `waiting`: nothing yet; it may pass by itself. */
export type Notice = (ToldNotices | (Omit<ToldNotices, 'state' | 'at'> & { readonly state: 'waiting' })) & {
  /** When this process first saw it, or saw it again before anybody was told, core clock, ms. */
  readonly from: number;
  /** Since when it is not seen any more, core clock, ms; null: it is there. */
  readonly gone: number | null;
};

/** ms that a cause must be gone to be over. */
export const calm = 10 * 60_000;

/** ms that a cause may be gone and still have lasted. */
const longestPause = 2 * 60_000;

export interface Times {
  /** Core clock, ms. */
  readonly now: number;
  /** Wall clock, ms since the epoch. */
  readonly wall: number;
}

/** The notices after a look. Those that have not changed are the same objects; those that nobody need remember are left out. */
export function decide({ causes, blind }: Seen, before: readonly Notice[], { now, wall }: Times): Notice[] {
  const wrong = new Map(causes.map((cause) => [cause.key, cause]));
  const known = new Set(before.map(({ key }) => key));
  const after = before.flatMap((notice): Notice[] => {
    const cause = wrong.get(notice.key);
    if (cause !== undefined) {
      const isAnew = notice.state === 'waiting' && notice.gone !== null && now - notice.gone > longestPause;
      const begun = isAnew ? { from: now, since: wall } : {};
      const here: Notice = notice.gone === null ? notice : { ...notice, ...begun, gone: null };
      const isDue = notice.state === 'waiting' && now - here.from >= cause.patience;
      const isWorse = notice.state === 'announced' && cause.stage > notice.stage;
      const { patience: _, ...about } = cause;
      return [isDue || isWorse ? { ...here, ...about, state: 'announcing', at: wall } : here];
    }
    if (blind.has(notice.kind)) return [notice];
    if (notice.gone === null) return [{ ...notice, gone: now }];
    if (now - notice.gone < calm) return [notice];
    if (notice.state === 'waiting') return [];
    return [notice.state === 'announced' ? { ...notice, state: 'ending', at: wall } : notice];
  });
  const fresh = causes.flatMap(({ patience, ...about }): Notice[] => {
    if (known.has(about.key)) return [];
    const first = { ...about, since: wall, from: now, gone: null };
    return [patience === 0 ? { ...first, state: 'announcing', at: wall } : { ...first, state: 'waiting' }];
  });
  return [...after, ...fresh];
}

/** The notice after its message was delivered; null once nobody need remember it. */
export function delivered(notice: Notice): Notice | null {
  if (notice.state === 'ending') return null;
  return notice.state === 'announcing' ? { ...notice, state: 'announced' } : notice;
}
