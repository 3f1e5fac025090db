/** Which driver a host has, and which CUDA that can run: said in a handful of places, some of them only by the driver's branch. */
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
 * The newest CUDA of each driver branch, for tools that do not say it: before 410, or without libcuda. A branch in between
 * can do what the one below it can. Source: NVIDIA's CUDA release notes, table of toolkit drivers; 384 to 455 and 495 from
 * public tables, most others seen in recordings (test/fixtures/gpu), 615 and 616 as announced. As of autumn 2026.
 */
const branches: readonly (readonly [branch: number, cuda: string])[] = [
  [384, '9.0'],
  [390, '9.1'],
  [396, '9.2'],
  [410, '10.0'],
  [418, '10.1'],
  [440, '10.2'],
  [450, '11.0'],
  [455, '11.1'],
  [460, '11.2'],
  [465, '11.3'],
  [470, '11.4'],
  [495, '11.5'],
  [510, '11.6'],
  [515, '11.7'],
  [520, '11.8'],
  [525, '12.0'],
  [530, '12.1'],
  [535, '12.2'],
  [545, '12.3'],
  [550, '12.4'],
  [555, '12.5'],
  [560, '12.6'],
  [565, '12.7'],
  [570, '12.8'],
  [575, '12.9'],
  [580, '13.0'],
  [590, '13.1'],
  [595, '13.2'],
  [610, '13.3'],
  [615, '13.4'],
];

/** The newest CUDA that this driver can certainly run; null below branch 384. */
export function cudaOfDriver(driver: string | null): string | null {
  const branch = driver === null ? 0 : Number.parseInt(driver, 10);
  return branches.findLast(([least]) => branch >= least)?.[1] ?? null;
}
