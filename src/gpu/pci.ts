/**
 * The GPUs on this host's PCI buses, as the kernel lists them: what the list of a vendor's tool is compared with. It reads only
 * files whose text the kernel has at hand: none of them makes a driver ask a card, which could block (S6).
 */
import { readdir, readFile, readlink } from 'node:fs/promises';
import { basename, join } from 'node:path';

/** Vendors whose devices onejob can grant. */
export type Vendor = 'nvidia' | 'amd' | 'intel';

/** A GPU on the bus, with or without a driver. */
export interface PciCard {
  /** Whether it is a display adapter: class 0300. */
  readonly isDisplay: boolean;
  readonly vendor: Vendor;
  /** As `Device.pciId`. */
  readonly pciId: string;
  /** The vendor's number for the chip, such as `0x20b2`; null where it cannot be read. */
  readonly chip: string | null;
  /** `nvidia`, `nouveau`, `amdgpu`, `vfio-pci`, …; null where none has it. */
  readonly driver: string | null;
  /** N of `/dev/dri/renderDN`. */
  readonly renderMinor: number | null;
}

/** PCI's numbers of the vendors (https://pci-ids.ucw.cz). */
const vendors: Readonly<Record<string, Vendor>> = { '0x10de': 'nvidia', '0x1002': 'amd', '0x8086': 'intel' };

/** Class codes of PCI: 0300 VGA, 0302 3D and 0380 other display controller, 1200 accelerator. 0680 would be an NVSwitch. */
const classes = /^0x(0300|0302|0380|1200)/;

/** All GPUs below `sys` (`/sys`), in the order of their addresses; null where the kernel has no such list. */
export async function readPci(sys: string): Promise<readonly PciCard[] | null> {
  const folder = join(sys, 'bus/pci/devices');
  const names = await readdir(folder).catch(() => null);
  if (names === null) return null;
  const cards = await Promise.all(names.map((name) => readCard(join(folder, name))));
  return cards.filter((card) => card !== null).sort((a, b) => comparePci(a.pciId, b.pciId));
}

/**
 * Whether the host has cards that jobs could use, as far as the kernel shows: any with NVIDIA's driver, and others with a driver that
 * drive no display, since most of those that do are part of a processor.
 */
export async function hasComputeCards(sys: string): Promise<boolean> {
  const cards = (await readPci(sys)) ?? [];
  return cards.some(({ vendor, driver, isDisplay }) =>
    vendor === 'nvidia' ? driver === 'nvidia' : !isDisplay && (driver === 'amdgpu' || driver === 'xe' || driver === 'i915'),
  );
}

async function readCard(folder: string): Promise<PciCard | null> {
  const pciId = normalPci(basename(folder));
  const [number, kind] = await Promise.all([readText(join(folder, 'vendor')), readText(join(folder, 'class'))]);
  const vendor = vendors[number ?? ''];
  if (pciId === null || vendor === undefined || kind === null || !classes.test(kind)) return null;
  // A virtual function is a part of its card, and the tools of its host do not list it.
  if ((await linkName(join(folder, 'physfn'))) !== null) return null;
  const [chip, driver, drm] = await Promise.all([
    readText(join(folder, 'device')),
    linkName(join(folder, 'driver')),
    readdir(join(folder, 'drm')).catch((): string[] => []),
  ]);
  const render = drm.map((name) => /^renderD(\d+)$/.exec(name)?.[1]).find((minor) => minor !== undefined);
  const isDisplay = kind.startsWith('0x0300');
  return { vendor, pciId, isDisplay, chip, driver, renderMinor: render === undefined ? null : Number(render) };
}

/** Any spelling of a PCI address as `Device.pciId`; domain and function default to 0. null for anything else. */
export function normalPci(text: string): string | null {
  const [, domain = '0', bus, device, fn = '0'] =
    /^(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?$/i.exec(text.trim()) ?? [];
  if (bus === undefined || device === undefined) return null;
  const hex = (digits: string, least: number) => Number.parseInt(digits, 16).toString(16).padStart(least, '0');
  return `${hex(domain, 4)}:${hex(bus, 2)}:${hex(device, 2)}.${fn}`;
}

/** Orders normal PCI addresses as numbers: domains may be of any length. Those without one come last. */
export function comparePci(a: string | null, b: string | null): number {
  const right = numbersOf(b);
  const differences = numbersOf(a).map((number, at) => number - (right[at] ?? 0));
  return differences.find((difference) => difference !== 0) ?? 0;
}

function numbersOf(pciId: string | null): number[] {
  const parts = (pciId ?? 'ffffffffff:0:0.0').split(/[:.]/);
  return parts.map((part) => Number.parseInt(part, 16));
}

/** A small file's text, trimmed; null when it is missing, unreadable or empty. */
export async function readText(file: string): Promise<string | null> {
  const text = await readFile(file, 'utf8').catch(() => '');
  return text.trim() || null;
}

async function linkName(link: string): Promise<string | null> {
  const target = await readlink(link).catch(() => null);
  return target === null ? null : basename(target);
}
