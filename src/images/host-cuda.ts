/** What CUDA the driver of a host can run: what its tool says, held against the driver's branch. */
import type { Inventory } from '../gpu/inventory.ts';
import type { Tables } from './tables.ts';
import { compareVersions, leadingVersion, major } from './version.ts';

export interface HostCuda {
  readonly cuda: string;
  /** null where only CUDA is known. */
  readonly driver: string | null;
  /** Where `cuda` comes from, and what was made of it. */
  readonly from: string;
  readonly verified: boolean;
}

/** null when neither the driver nor its CUDA is known, or the driver is older than all that the tables know. */
export function hostCuda(inventory: Pick<Inventory, 'driver' | 'cuda' | 'cudaFrom'>, tables: Tables): HostCuda | null {
  const driver = leadingVersion(inventory.driver);
  const said = inventory.cudaFrom === 'tool' && /^\d+\.\d+$/.test(inventory.cuda ?? '') ? inventory.cuda : null;
  const row = driver === null ? null : branchRow(driver, tables);
  const exact = row !== null && driver !== null && row.driver === major(driver);
  if (said !== null && exact && compareVersions(said, row.cuda) > 0) {
    // Inside a container with forward compatibility the tool shows the container's number, which other images do not have.
    const from = `the driver's branch ${row.driver}; the tool says ${said}, which only forward compatibility gives: ask on the host`;
    return { cuda: row.cuda, driver, from, verified: row.verified };
  }
  if (said !== null) return { cuda: said, driver, from: 'nvidia-smi', verified: true };
  if (row === null) return null;
  const from = exact ? `the driver's branch ${row.driver}` : `branch ${row.driver}, the nearest one below the driver that is known`;
  return { cuda: row.cuda, driver, from, verified: row.verified };
}

function branchRow(driver: string, tables: Tables): Tables['branches'][number] | null {
  return (
    tables.branches
      .filter((each) => each.driver <= major(driver))
      .toSorted((one, other) => one.driver - other.driver)
      .at(-1) ?? null
  );
}
