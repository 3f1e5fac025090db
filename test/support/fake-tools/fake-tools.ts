/** Vendors' tools that are small scripts: they answer, hang, complain and die as the real ones do, and count their calls. */
import { appendFileSync, chmodSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export interface FakeTools {
  /** For a runner: the tools' folder and where `sh` finds its commands. */
  readonly path: string;
  /** Makes `tool` do what a piece of shell says; `$*` are its arguments. Each call is counted. */
  put(tool: string, body: string): void;
  /** Makes `tool` print a file whatever it is asked. */
  prints(tool: string, file: string): void;
  /** The arguments of each call so far. */
  calls(tool: string): readonly string[];
}

/** `folder` must be there; nothing outside of it is touched. */
export function fakeTools(folder: string): FakeTools {
  const tools = join(folder, 'tools');
  mkdirSync(tools);
  const log = (tool: string) => join(folder, `${tool}.calls`);
  const put: FakeTools['put'] = (tool, body) => {
    // Written beside and renamed over would be safer, but nobody runs it meanwhile.
    writeFileSync(join(tools, tool), `#!/bin/sh\necho "$*" >>'${log(tool)}'\n${body}\n`);
    chmodSync(join(tools, tool), 0o755);
    appendFileSync(log(tool), '');
  };
  return {
    path: `${tools}:/usr/bin:/bin`,
    put,
    prints: (tool, file) => put(tool, `cat '${file}'`),
    calls: (tool) => (existsSync(log(tool)) ? readFileSync(log(tool), 'utf8').split('\n').slice(0, -1) : []),
  };
}

/** A piece of shell that is deaf to TERM and never ends by itself. */
export const hangs = 'trap "" TERM INT HUP\nwhile :; do sleep 60; done';

/** What an empty host has in /sys and /proc: no card, no driver. */
export function emptyHost(folder: string): { readonly sys: string; readonly proc: string } {
  const host = { sys: join(folder, 'sys'), proc: join(folder, 'proc') };
  mkdirSync(join(host.sys, 'bus/pci/devices'), { recursive: true });
  mkdirSync(host.proc, { recursive: true });
  return host;
}

export interface FakeCard {
  readonly vendor: '0x10de' | '0x1002' | '0x8086';
  /** Default: a 3D controller. */
  readonly class?: string;
  readonly chip?: string;
  readonly driver?: string;
  readonly render?: number;
}

/** Puts a card on the bus of `sys`. */
export function plugIn(
  sys: string,
  pciId: string,
  { vendor, class: kind = '0x030200', chip = '0x1234', driver, render }: FakeCard,
): void {
  const folder = join(sys, 'bus/pci/devices', pciId);
  mkdirSync(folder, { recursive: true });
  for (const [file, text] of Object.entries({ vendor, class: kind, device: chip, numa_node: '0' })) {
    writeFileSync(join(folder, file), `${text}\n`);
  }
  if (render !== undefined) mkdirSync(join(folder, 'drm', `renderD${render}`), { recursive: true });
  if (driver !== undefined) symlinkSync(join('../../../bus/pci/drivers', driver), join(folder, 'driver'));
}
