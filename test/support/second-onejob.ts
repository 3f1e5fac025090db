/** Machines of a cloud that are a second real onejob on this host: they join, attend, run jobs and drain. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'yaml';
import { createOutbound } from '../../src/http/outbound.ts';
import { noProxies } from '../../src/http/proxies.ts';
import { attendMachine, joinController, memory } from '../../src/machines/join/machine.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import type { Machines } from './cloud-standins.ts';
import { type Daemon, type Home, onejob } from './onejob.ts';

const quiet = { info() {}, warn() {}, error() {} };

export interface SecondOnejob {
  readonly id: string;
  readonly run: string;
  readonly home: Home;
  readonly daemon: Daemon;
  /** Ends what attends to it, as a crash would, until `attend`. */
  unattended(): Promise<void>;
  attend(): void;
  /** Takes everything away at once. */
  die(): Promise<void>;
}

/** `env`: of the machines' daemons. Close it before the test ends. */
export function secondOnejobs(env: Readonly<Record<string, string>> = {}) {
  const found = new Map<string, Promise<SecondOnejob>>();
  const broken: unknown[] = [];
  const outbound = createOutbound(noProxies);

  async function boot(id: string, text: string): Promise<SecondOnejob> {
    const root = mkdtempSync(join(tmpdir(), 'oj-machine-'));
    const files = (parse(text) as { write_files: { path: string; content: string }[] }).write_files;
    const file = join(root, 'machine.json');
    const given = JSON.parse(files.find(({ path }) => path.endsWith('machine.json'))?.content ?? '');
    writeFileSync(file, JSON.stringify({ ...given, cloud: 'none' }));
    const { fetch } = outbound;
    const parts = { file, clock: systemClock, fetch, metadata: fetch, log: quiet, version: '0.1.0', root };
    await joinController(parts, AbortSignal.timeout(60_000));
    const home = await onejob({ config: readFileSync(join(root, memory, 'config.yml'), 'utf8'), env });
    const daemon = await home.up();
    let over = new AbortController();
    let attending: Promise<void> = Promise.resolve();
    const unattended = async () => {
      over.abort();
      await attending;
    };
    const machine: SecondOnejob = {
      id,
      run: given.run,
      home,
      daemon,
      unattended,
      attend() {
        over = new AbortController();
        const more = { socket: home.socket, upgrade: outbound.upgrade };
        attending = attendMachine({ ...parts, ...more }, over.signal).catch((error: unknown) => void broken.push(error));
      },
      async die() {
        await unattended();
        // One whose socket is gone ends already, and a signal would cut that short.
        if (!existsSync(home.socket)) await daemon.child.ended;
        await home.close();
        rmSync(root, { recursive: true, force: true });
      },
    };
    machine.attend();
    return machine;
  }

  const machines: Machines = {
    boot(id, text) {
      const booted = boot(id, text);
      found.set(id, booted);
      booted.catch((error: unknown) => void broken.push(error));
    },
    end: (id) =>
      void found.get(id)?.then(
        (machine) => machine.die().catch((error: unknown) => void broken.push(error)),
        () => {},
      ),
  };
  return {
    machines,
    broken,
    /** Those so far, in the order of their creation. */
    all: () => Promise.all(found.values()),
    async [Symbol.asyncDispose]() {
      for (const machine of await Promise.allSettled(found.values())) if (machine.status === 'fulfilled') await machine.value.die();
      outbound.close();
    },
  };
}
