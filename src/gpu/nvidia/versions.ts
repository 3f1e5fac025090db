/** Which driver a host has, and which CUDA that can run: said in a handful of places, some of them only by the driver's branch. */
import { builtInTables } from '../../images/tables.ts';
import { cudaVersion, driverVersion } from './values.ts';

export interface Versions {
  /** Of the kernel driver. */
  readonly driver: string | null;
  readonly cuda: string | null;
}

/** Whether `nvidia-smi --version` is in the text. */
export function looksLikeVersions(text: string): boolean {
  return /^[ \t]{0,8}NVIDIA-SMI version\s{0,20}:/im.test(text);
}

/** `nvidia-smi --version`; driver 610 says "Deprecated" where its version was, and has new names for both. */
export function readVersions(text: string): Versions {
  const said = (label: string) => new RegExp(`^\\s{0,8}${label} version\\s{0,20}:(.{0,80})$`, 'im').exec(text)?.[1];
  return {
    driver: driverVersion(said('KMD')) ?? driverVersion(said('DRIVER')),
    cuda: cudaVersion(said('CUDA UMD')) ?? cudaVersion(said('CUDA')),
  };
}

/** Whether the table of `nvidia-smi` alone is in the text. */
export function looksLikeTable(text: string): boolean {
  return /^\| NVIDIA-SMI \S/m.test(text);
}

/** The head of the table; the rest of it is cut to fit and never read. */
export function readTableHead(text: string): Versions {
  const head = /^\| NVIDIA-SMI \S.{0,200}$/m.exec(text)?.[0] ?? '';
  const said = (label: string) => new RegExp(`${label} Version:(.{0,60})`).exec(head)?.[1];
  return {
    driver: driverVersion(said('KMD')) ?? driverVersion(said('Driver')),
    cuda: cudaVersion(said('CUDA UMD')) ?? cudaVersion(said('CUDA')),
  };
}

/** `/proc/driver/nvidia/version`: `NVRM version: NVIDIA UNIX … Kernel Module [for x86_64]  550.54.14  …`. */
export function readProcVersion(text: string): string | null {
  const line = /^NVRM version:(.{0,400})$/m.exec(text)?.[1] ?? '';
  return driverVersion(/\s(\d{3,4}\.\d{1,4}(?:\.\d{1,4}){0,2})(?=\s|$)/.exec(line)?.[1]);
}

/**
 * The newest CUDA that this driver can certainly run, for tools that do not say it: before 410, or without libcuda. A branch that
 * the tables lack can do what the one below it can; null below the first.
 */
export function cudaOfDriver(driver: string | null): string | null {
  const branch = driver === null ? 0 : Number.parseInt(driver, 10);
  return builtInTables.branches.findLast((row) => branch >= row.driver)?.cuda ?? null;
}
