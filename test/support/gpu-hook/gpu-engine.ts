/**
 * A private Engine that gives out GPUs which do not exist: device nodes with the right names that are /dev/null in truth.
 * What it gave to whom stands in a log, and it can be told to do it wrong.
 */
import { chmodSync, copyFileSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type PrivateEngine, type PrivateEngineOptions, privateEngine } from '../dockerd.ts';

export interface StubCard {
  readonly uuid: string;
  /** N of `/dev/nvidiaN`; a MIG instance has its card's. */
  readonly minor: number;
  /** Of a MIG instance: N of its two `/dev/nvidia-caps/nvidia-capN`. */
  readonly caps?: readonly [number, number];
}

/** `right` grants what was asked for, `wrong` all other cards, `many` all, `none` nothing; `hang` waits for another mode. */
export type HookMode = 'right' | 'wrong' | 'many' | 'none' | 'fail' | 'hang';

/** One call of the hook. */
export interface Granted {
  /** Wall clock, ns. */
  readonly time: bigint;
  /** The container's whole id. */
  readonly id: string;
  /** As they were asked for: UUIDs, or `all`. */
  readonly devices: readonly string[];
}

export interface GpuEngine extends AsyncDisposable {
  readonly engine: PrivateEngine;
  readonly cards: readonly StubCard[];
  /** From the next call on. */
  mode(mode: HookMode): void;
  /** All calls so far, in their order. */
  granted(): Granted[];
}

export interface GpuEngineOptions extends PrivateEngineOptions {
  readonly cards: readonly StubCard[];
  /** `hook`: on the PATH, as device requests need it. `runtime`: as runtime `nvidia`, `default`: that as everybody's. */
  readonly as?: 'hook' | 'runtime' | 'default';
  /** Mounts a file into the /proc of each container that gets a card, as NVIDIA's tools do with `/proc/driver/nvidia/params`. */
  readonly mountsIntoProc?: boolean;
}

const names = ['nvidia-container-runtime-hook', 'nvidia-container-runtime'];

/** Needs `lacks('dockerd')` to be false. */
export async function gpuEngine({ cards, as = 'hook', mountsIntoProc = false, ...options }: GpuEngineOptions): Promise<GpuEngine> {
  const dir = mkdtempSync(join(tmpdir(), 'ojh-'));
  // As a whole: a hook may be reading it.
  const write = (name: string, text: string) => {
    writeFileSync(join(dir, '.new'), text);
    renameSync(join(dir, '.new'), join(dir, name));
  };
  for (const name of names) {
    copyFileSync(join(import.meta.dirname, name), join(dir, name));
    chmodSync(join(dir, name), 0o755);
  }
  write('cards', cards.map(({ uuid, minor, caps = [] }) => `${[uuid, minor, ...caps].join(' ')}\n`).join(''));
  if (mountsIntoProc) write('params', 'ModifyDeviceFiles: 0\n');
  write('mode', 'right');
  write('log', '');
  const runtimes = { nvidia: { path: join(dir, 'nvidia-container-runtime') } };
  const engine = await privateEngine({
    ...options,
    ...(as === 'hook' && { path: dir }),
    config: { ...options.config, ...(as !== 'hook' && { runtimes }), ...(as === 'default' && { 'default-runtime': 'nvidia' }) },
  }).catch((error: unknown) => {
    rmSync(dir, { recursive: true });
    throw error;
  });
  return {
    engine,
    cards,
    mode: (mode) => write('mode', mode),
    granted: () => readLog(join(dir, 'log')),
    async [Symbol.asyncDispose]() {
      // A hook that hangs would hold up the removal of its container.
      write('mode', 'right');
      await engine[Symbol.asyncDispose]();
      rmSync(dir, { recursive: true });
    },
  };
}

function readLog(path: string): Granted[] {
  const lines = readFileSync(path, 'utf8').split('\n').filter(Boolean);
  return lines.map((line) => {
    const [, time = '0', id = '', devices = ''] = /^\{"time":(\d+),"id":"(.*)","devices":"(.*)"\}$/.exec(line) ?? [];
    return { time: BigInt(time), id, devices: devices.split(',').filter(Boolean) };
  });
}
