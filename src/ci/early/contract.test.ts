/** What a CI service costs that binds early: a made-up one, as small as can be, with all that one must have and nothing else. */
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { type EarlySubject, earlyBoundContract, noFacts } from '../../../test/kit/ci-contract.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import { createLog } from '../../base/log.ts';
import type { CiService } from '../../ports/ci-service.ts';
import { openStore, type Store } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import { EarlyBound } from './engine.ts';
import type { Entry, RemoteJob } from './port.ts';

interface Row {
  readonly id: string;
  readonly name: string;
  isOnline: boolean;
  job: number | null;
}

/** The service: agents by their names, jobs by their numbers. It can keep no job from an agent, and forgets jobs that are over. */
class Hatch {
  readonly rows: Row[] = [{ id: '0', name: 'somebody', isOnline: true, job: 0 }];
  entries = 0;
  jobs = 0;
  isAway = false;
  losesAnswer = false;

  /** Every call comes through here. */
  async call<T>(what: () => T): Promise<T> {
    if (this.isAway) throw new OnejobError('E_CI_UNREACHABLE', 'Cannot reach the hatch.', { retry: true });
    return what();
  }

  async add(name: string): Promise<Row> {
    const row = await this.call(() => {
      if (this.rows.some((one) => one.name === name))
        throw new OnejobError('E_CI_NAME_TAKEN', `The hatch has a ${name}.`, { retry: true });
      this.entries += 1;
      return { id: String(this.entries), name, isOnline: false, job: null };
    });
    this.rows.push(row);
    if (!this.losesAnswer) return row;
    this.losesAnswer = false;
    throw new OnejobError('E_CI_UNREACHABLE', 'The hatch closed.', { retry: true });
  }

  remove(id: string): Promise<'removed' | 'busy' | 'absent'> {
    return this.call(() => {
      const at = this.rows.findIndex((one) => one.id === id);
      if (at === -1) return 'absent';
      if (this.rows[at]?.job !== null) return 'busy';
      this.rows.splice(at, 1);
      return 'removed';
    });
  }
}

const place = 'counter';

/** The adapter: this is all that has to be written. */
function openHatch(hatch: Hatch, store: Store, live: ReadonlySet<string>): CiService {
  const jobOf = (number: number): RemoteJob => ({
    id: `hatch-${number}`,
    state: 'running',
    facts: () => ({ ...noFacts, title: `job ${number}` }),
  });
  const entryOf = ({ id, name, isOnline, job }: Row): Entry => {
    return { place, id, name, status: isOnline ? 'online' : 'offline', job: job === null ? null : jobOf(job) };
  };
  const { common } = new EarlyBound(
    {
      service: 'hatch',
      url: 'the hatch',
      compare: 'Ask at the hatch.',
      queues: [{ name: place, pools: ['ci'] }],
      pace: { pollEvery: 20, bootTimeout: 60_000 },
      store,
      clock: systemClock,
      log: createLog({ json: true, stream: new PassThrough() }),
      random: () => 0.5,
      opened: new Set(['hatch']),
      slots: { poolOf: (agent) => (live.has(agent) ? 'ci' : null), silentFor: () => null, isBusy: () => false },
    },
    () => ({
      list: () => hatch.call(() => ({ place, title: 'the counter', entries: hatch.rows.map(entryOf) })),
      create: async (_, name) => ({
        place,
        async create() {
          const { id } = await hatch.add(name);
          return { id, script: `exec hatch-agent ${id}`, files: null };
        },
      }),
      find: (which) =>
        hatch.call(() => {
          const row = hatch.rows.find((one) => ('id' in which ? one.id === which.id : one.name === which.name));
          return row === undefined ? null : entryOf(row);
        }),
      remove: ({ id }) => hatch.remove(id),
    }),
  );
  return {
    ...common,
    capabilities: { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    check: () => hatch.call(() => [{ level: 'ok', subject: 'service hatch', message: 'The hatch is open.', hint: null }]),
  };
}

earlyBoundContract('hatch, made up', async (): Promise<EarlySubject> => {
  const hatch = new Hatch();
  const dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  const live = new Set<string>();
  const give = (row: Row | undefined): string => {
    hatch.jobs += 1;
    if (row !== undefined) row.job = hatch.jobs;
    return `hatch-${hatch.jobs}`;
  };
  return {
    service: openHatch(hatch, store, live),
    pool: 'ci',
    live,
    inside: '',
    enqueue: async () => give(hatch.rows.find(({ isOnline, job }) => isOnline && job === null)),
    commit: (write) => write(),
    async start(script) {
      const row = hatch.rows.find(({ id }) => script.endsWith(` ${id}`));
      if (row !== undefined) row.isOnline = true;
      return {
        work: async () => give(row),
        finish: async () => void (row !== undefined && hatch.rows.splice(hatch.rows.indexOf(row), 1)),
      };
    },
    listed: () => hatch.rows.map(({ name }) => name),
    async other(name, isOnline) {
      (await hatch.add(name)).isOnline = isOnline;
    },
    loseAnswer() {
      hatch.losesAnswer = true;
    },
    async goAway() {
      hatch.isAway = true;
      return async () => {
        hatch.isAway = false;
      };
    },
    async close() {
      store.close();
      dir[Symbol.dispose]();
    },
  };
});
