/** NVIDIA's error numbers, and what each means for the next use of a GPU. */
import xids from './xid.json' with { type: 'json' };

/**
 * `application`: a program's fault, the GPU stays usable. `info`: a record, nothing to do now. `reset`: usable again after
 * a reset. `restart`: only after the host restarted. `hardware`: for the owner and the vendor. `unknown`: not in our copy of
 * the catalogue, so the GPU must not be used before a later look found it healthy.
 */
export type XidGrade = 'application' | 'info' | 'reset' | 'restart' | 'hardware' | 'unknown';

const known = new Map(
  (Object.entries(xids.grades) as [XidGrade, Record<string, string>][]).flatMap(([grade, all]) =>
    Object.entries(all).map(([xid, meaning]) => [xid, { grade, meaning }] as const),
  ),
);

/**
 * What one of NVIDIA's error numbers ("Xid", in the kernel log) means for the next use of a GPU, in a few words without the number.
 * `xid.json` has the sources; a number that the catalogue does not grade is `unknown`.
 */
export function gradeXid(xid: number): { readonly grade: XidGrade; readonly meaning: string } {
  return known.get(String(xid)) ?? { grade: 'unknown', meaning: 'not known to onejob' };
}
