/**
 * A machine that cannot reach its controller, with all of onejob that is on a real one, but without cloud-init and systemd: it joins
 * with `onejob cloud join`, has a daemon with the config that it got, and attends to it.
 */
import { closeSync, mkdirSync, openSync, readFileSync, readSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { lineOf } from '../../src/machines/join/line.ts';
import { attendMachine, joinController } from '../../src/machines/join/machine.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import type { CloudStandin, Guest, Machines } from './cloud-standins.ts';
import { type Home, onejob } from './onejob.ts';
import { type Scratch, scratch } from './scratch.ts';

/** What a machine has that runs. */
export interface MailMachine {
  readonly home: Home;
  /** Stands for its `/`. */
  readonly root: string;
}

const quiet = { info() {}, warn() {}, error() {} };

/** Asks for the stand-in late, since that is made with the machines. */
export function mailMachines(cloud: () => CloudStandin) {
  const ending = new AbortController();
  const folders: Scratch[] = [];
  const works: Promise<void>[] = [];
  const broken: unknown[] = [];
  const joined = Promise.withResolvers<MailMachine>();

  async function play(guest: Guest, text: string, folder: string): Promise<void> {
    const files = (parse(text) as { write_files: { path: string; content: string }[] }).write_files;
    const file = join(folder, 'machine.json');
    const machine = files.find(({ path }) => path.endsWith('machine.json'))?.content ?? '';
    writeFileSync(file, machine);
    mkdirSync(join(folder, 'dev'));
    writeFileSync(join(folder, 'dev/console'), '');
    const off = pump(join(folder, 'dev/console'), guest);
    try {
      guest.print(`[    1.0] Linux version 6.8.0\r\n${lineOf(JSON.parse(machine).run, 'booted', '6.8.0')}\r\n`);
      const parts = { file, clock: systemClock, fetch: unreachable, log: quiet, version: '0.1.0', root: folder };
      await joinController({ ...parts, metadata: guest.metadata }, ending.signal);
      // Its services are only names here, and one pool takes jobs of this test.
      const { defaults, pools } = parse(readFileSync(join(folder, 'run/onejob-cloud/config.yml'), 'utf8'));
      pools.gpu = { agents: 1, runtime: 'process' };
      for (const [name, { service }] of Object.entries<{ service?: string }>(pools)) if (service !== undefined) delete pools[name];
      const home = await onejob({ config: stringify({ defaults, pools }) });
      try {
        await home.up();
        joined.resolve({ home, root: folder });
        const upgrade = () => Promise.reject(new Error('nothing listens'));
        await attendMachine({ ...parts, metadata: guest.metadata, socket: home.socket, upgrade }, ending.signal);
      } finally {
        await home.close();
      }
    } finally {
      off();
    }
  }

  const machines: Machines = {
    boot(id, text) {
      const folder = scratch();
      folders.push(folder);
      works.push(
        play(cloud().guest(id), text, folder.path).catch((error: unknown) => {
          broken.push(error);
          joined.reject(error);
        }),
      );
    },
    end() {},
  };
  return {
    machines,
    /** The first one that has its config and a daemon. */
    joined: joined.promise,
    /** What was wrong, also after that. */
    broken,
    async [Symbol.asyncDispose]() {
      ending.abort();
      await Promise.all(works);
      for (const folder of folders) folder[Symbol.dispose]();
    },
  };
}

const unreachable: typeof fetch = async (input) => {
  throw new Error(`A machine without a way to its controller asked for ${String(input)}.`);
};

/** Brings what is written on the console to the cloud, until it is called off. */
function pump(path: string, { print }: Guest): () => void {
  const file = openSync(path, 'r');
  const bytes = Buffer.alloc(65_536);
  const timer = setInterval(() => {
    const count = readSync(file, bytes);
    if (count > 0) print(bytes.subarray(0, count).toString());
  }, 50);
  return () => {
    clearInterval(timer);
    closeSync(file);
  };
}
