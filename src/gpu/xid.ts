/** What NVIDIA's error numbers ("Xid", in the kernel log) mean for the next use of a GPU; `xid.json` has grades and sources. */
import xids from './xid.json' with { type: 'json' };

/**
 * `application`: a program's fault, the GPU stays usable. `info`: a record, nothing to do now. `reset`: usable again after
 * a reset. `restart`: only after the host restarted. `hardware`: for the owner and the vendor. `unknown`: not in our copy of
 * the catalogue, so the GPU must not be used before a later look found it healthy.
 */
export type XidGrade = 'application' | 'info' | 'reset' | 'restart' | 'hardware' | 'unknown';

interface Meaning {
  readonly grade: XidGrade;
  /** A few words for a person, without the number. */
  readonly meaning: string;
}

const known = new Map<string, Meaning>(
  (Object.entries(xids.grades) as [XidGrade, Record<string, string>][]).flatMap(([grade, all]) =>
    Object.entries(all).map(([xid, meaning]) => [xid, { grade, meaning }] as const),
  ),
);

/** What an Xid means. A number that the catalogue does not grade is `unknown`. */
export function gradeXid(xid: number): Meaning {
  return known.get(String(xid)) ?? { grade: 'unknown', meaning: 'not known to onejob' };
}
