/**
 * A whole host in virtual time: the real loop, store, own queue and logs over a simulated runtime. A manager can be killed
 * at any moment in which it waits, and another one is started on what it left on disk.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { JobRequest, JobView } from '../../src/api/schema.ts';
import { createCiServices } from '../../src/ci/index.ts';
import type { OwnQueue } from '../../src/ci/own-queue/own-queue.ts';
import { readEnvironment } from '../../src/config/environment.ts';
import { loadConfig } from '../../src/config/load.ts';
import { slotNames } from '../../src/config/slot-names.ts';
import { isEmpty } from '../../src/core/slot.ts';
import { followServices, slotFacts } from '../../src/pools/ci-events.ts';
import { type Loop, openLoop } from '../../src/pools/loop.ts';
import { subdirectory } from '../../src/store/directory.ts';
import { openStore, type Store } from '../../src/store/store.ts';
import { type Act, SimEngine, simRuntime } from './runtime.ts';
import { type ProcessClock, SimTime, seeded } from './time.ts';

interface Manager {
  readonly clock: ProcessClock;
  readonly store: Store;
  readonly loop: Loop;
  readonly queue: OwnQueue;
  readonly watching: AbortController;
}

/** A line of the story: virtual ms, what happened. */
export type Line = readonly [ms: number, what: string];

export class SimHost {
  readonly random: () => number;
  readonly time: SimTime;
  readonly engine: SimEngine;
  readonly dir: string;
  readonly story: Line[] = [];
  crashes = 0;
  readonly #config: string;
  #manager: Manager | null = null;

  /** `pools`: the config's pools, as YAML in one line. */
  constructor(seed: number, pools: string) {
    this.random = seeded(seed);
    this.time = new SimTime(this.random);
    this.engine = new SimEngine(this.time, this.random);
    this.dir = mkdtempSync(join(tmpdir(), 'onejob-sim-'));
    this.#config = join(this.dir, 'config.yml');
    writeFileSync(this.#config, `pools: ${pools}\n`);
  }

  get manager(): Manager {
    if (this.#manager === null) throw new Error('no manager runs');
    return this.#manager;
  }

  async start(): Promise<void> {
    const clock = this.time.process();
    const env = readEnvironment({ HOME: this.dir, PATH: '/usr/bin:/bin' });
    const flags = { config: this.#config, stateDir: join(this.dir, 'state'), socket: join(this.dir, 's') };
    const { config } = await loadConfig({ flags, env, now: clock.wall() });
    const store = openStore(config.stateDir);
    const stored = store.slots.all().map(({ slot }) => slot);
    const runtime = simRuntime(this.engine, clock);
    const tell = (level: string) => (message: string, about?: object) =>
      void this.story.push([this.time.now, `${level} ${message} ${JSON.stringify(about ?? {})}`]);
    const log = { info: tell('info'), warn: tell('warn'), error: tell('error') };
    const services = createCiServices({
      ...{ config, env, store, clock, log },
      reasonFor: () => null,
      version: '0.0.0',
      self: [],
      slots: slotFacts(() => loop.reconciler, clock),
    });
    const queue = services.own;
    const loop: Loop = await openLoop({
      ...{ config, env, store, stored, clock, log },
      runtimes: {
        all: [runtime],
        best: runtime,
        reason: null,
        findings: () => [],
        get: () => runtime,
        chooseAgain: async () => false,
      },
      services: services.byName,
      nameOf: slotNames(config),
      logDir: subdirectory(store.dir, 'logs'),
      temporary: false,
      hurry: new AbortController().signal,
      emptied: () => {},
    });
    const watching = new AbortController();
    const { reconciler, observer } = loop;
    followServices(
      new Set(services.byName.values()),
      { reconciler, clock, log, demanded: () => {}, lastWords: loop.lastWords },
      watching.signal,
    );
    this.#manager = { clock, store, loop, queue, watching };
    // Of a manager that is killed meanwhile this never ends.
    void observer.start().then(() => {
      reconciler.pause.release('starting');
      reconciler.start();
    });
  }

  /** kill -9: what is on disk stays, what was under way never ends. */
  async crash(): Promise<void> {
    const { clock, store, watching, loop } = this.manager;
    clock.kill();
    watching.abort();
    this.#manager = null;
    this.crashes += 1;
    this.story.push([this.time.now, 'the manager was killed']);
    store.close();
    await loop.keepers.close();
  }

  submit(act: Act, request: Partial<JobRequest> = {}): string {
    const command = ['sim', JSON.stringify(act)];
    const whole = {
      name: null,
      user: null,
      memory: null,
      cpus: null,
      id: null,
      pool: null,
      env: {},
      image: null,
      volumes: [],
      devices: null,
      priority: 0,
      timeout: null,
    };
    return this.manager.queue.submit({ ...whole, retries: 0, artifacts: [], workspace: null, ...request, command }).id;
  }

  job(id: string): JobView {
    const job = this.manager.queue.job(id);
    if (job === null) throw new Error(`no job ${id}`);
    return job;
  }

  /** Every slot is empty and nothing of ours is at the Engine. */
  get isEmpty(): boolean {
    return this.manager.loop.reconciler.slots.every(isEmpty) && this.engine.sandboxes.size === 0;
  }

  async close(): Promise<void> {
    if (this.#manager !== null) await this.crash();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
