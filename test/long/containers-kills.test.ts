/**
 * Many jobs that run containers, while everything that they lean on is killed at moments drawn by the seed: the manager, the engines in
 * their agents, the containers of those, and the Engine of the host. Each job has one end, which is told once and never changes, none runs
 * twice, only those are lost whose agent was hit, and nothing is left. `ONEJOB_KILLED_JOBS` says how many jobs.
 */
import { chmodSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, describe, expect, test } from 'vitest';
import { attempt } from '../../src/base/errors.ts';
import type { JobView } from '../../src/contract/schema.ts';
import { dice } from '../support/dice.ts';
import type { PrivateEngine } from '../support/dockerd.ts';
import { images } from '../support/images.ts';
import { boxes } from '../support/job-containers.ts';
import { lacks } from '../support/require.ts';

const count = Number(process.env.ONEJOB_KILLED_JOBS ?? 100);
const agents = 3;

/** Leaves a file when it begins, one from its container, and one line. Each job has a code of its own. */
const script = [
  'mktemp -p /runs "begun.$ONEJOB_JOB_ID.XXXXXX" >/dev/null || exit 99',
  `docker run --rm -v /runs:/runs ${images.base} sh -c "mktemp -p /runs inside.$ONEJOB_JOB_ID.XXXXXX >/dev/null; sleep 0.5" || exit 98`,
  'echo "ran $ONEJOB_ARRAY_INDEX"; exit $((ONEJOB_ARRAY_INDEX % 5))',
].join('\n');

/** Programs of the engines in an agent's container. Podman's end is the container's. */
const programs = /^(podman|rootlesskit|dockerd|containerd)$/;

interface Container {
  readonly Id: string;
  readonly Labels: Readonly<Record<string, string>>;
}

/** The same ones whenever the seed is the same, but for how many a run needs. */
const roll = dice();
const pick = (below: number): number => Math.floor(roll() * below);
const oneOf = <T>(all: readonly T[]): T | undefined => all[pick(all.length)];

/** What kills, how often it did, and which agents it hit. */
function killer(engine: PrivateEngine) {
  const hit = new Set<string>();
  const kills = { manager: 0, inside: 0, container: 0, engine: 0 };
  const agentsNow = async () => {
    const filters = JSON.stringify({ label: ['onejob.agent'] });
    return (await engine.api.ok('GET', `/containers/json?${new URLSearchParams({ filters })}`)) as readonly Container[];
  };
  /** `act`: false if there was nothing to kill, since an agent may end at any moment. */
  const inOne = (what: 'inside' | 'container', act: (id: string) => Promise<boolean>) => async (): Promise<void> => {
    const container = oneOf(await agentsNow());
    if (container === undefined || !(await act(container.Id))) return;
    hit.add(container.Labels['onejob.agent'] ?? '');
    kills[what] += 1;
  };
  const container = inOne('container', async (id) => (await engine.api.call('POST', `/containers/${id}/kill`)).status === 204);
  const inside = inOne('inside', async (id) => {
    const { status, body } = await engine.api.call('GET', `/containers/${id}/top?ps_args=${encodeURIComponent('-eo pid,comm')}`);
    const { Processes = [] } = status === 200 ? (body as { readonly Processes?: readonly (readonly string[])[] }) : {};
    const pid = Number(oneOf(Processes.filter(([, name = '']) => programs.test(name)))?.[0]);
    return pid > 0 && attempt(() => process.kill(pid, 'SIGKILL')) === true;
  });
  return {
    hit,
    kills,
    /** Of an agent, or of none. */
    one: (): Promise<void> => oneOf([container, inside, async () => {}])?.() ?? Promise.resolve(),
    /** With live-restore, an Engine 20.10 that is killed while it starts a container leaves that one running, and does not know it. */
    async engine(): Promise<void> {
      await engine.kill();
      await sleep(pick(2_000));
      await engine.start();
      kills.engine += 1;
    },
  };
}

/** Processes in mount namespaces of their own that see one of the folders: those of containers. */
function inContainers(...folders: readonly string[]): string[] {
  const own = readFileSync('/proc/self/mountinfo', 'utf8');
  return readdirSync('/proc').filter((pid) => {
    const mounts = /^\d+$/.test(pid) ? attempt(() => readFileSync(`/proc/${pid}/mountinfo`, 'utf8')) : null;
    return mounts !== null && mounts !== own && folders.some((folder) => mounts.includes(`${folder}/`));
  });
}

/** Mounts of containers, in the Engine's folder. */
const mountsOf = ({ dataRoot }: PrivateEngine) =>
  readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .flatMap((line) => line.split(' ')[4] ?? [])
    .filter((point) => point.startsWith(`${dataRoot}/`) && point !== `${dataRoot}/overlay2`);

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('a pool with containers', () => {
  const runs = join(tmpdir(), `ojr-${process.pid}`);
  const box = boxes(`agents: ${agents}, containers: { images: ["${images.base}"] }, volumes: ["${runs}:/runs:rw"]`, {
    async make() {
      mkdirSync(runs);
      chmodSync(runs, 0o777);
    },
  });
  afterAll(() => rmSync(runs, { recursive: true, force: true }));

  const filesOf = (kind: string, id: string) => readdirSync(runs).filter((name) => name.startsWith(`${kind}.${id}.`)).length;

  async function logOf(id: string): Promise<string> {
    let text = '';
    for await (const { stream, bytes } of box.home.api.logs({ job: id }, { follow: false }))
      if (stream === 'stdout') text += Buffer.from(bytes).toString();
    return text;
  }

  test(
    `runs ${count} jobs, each once, while all that they lean on is killed again and again`,
    async () => {
      const { engine, home } = box;
      const kill = killer(engine);
      const words = ['--pool', 'box', '--no-workspace', '--detach', '--array', `0-${count - 1}`];
      const array = await home.run(...words, '--', 'sh', '-c', script).ended;
      expect(array, array.stderr).toMatchObject({ code: 0 });

      const told = new Map<string, JobView>();
      /** How many have not ended. What was told once is told again. */
      const look = async (): Promise<number> => {
        const all = await home.api.jobs({ all: true, pool: null });
        expect(all).toHaveLength(count);
        for (const job of all.filter(({ state }) => state === 'done')) {
          const { id, attempt: tries, agent, result } = job;
          expect(told.get(id) ?? job).toMatchObject({ attempt: tries, agent, result });
          told.set(id, job);
        }
        return count - told.size;
      };
      /** With a manager that sees it, or while it is away. */
      const strike = async (act: () => Promise<void>, isSeen: boolean): Promise<void> => {
        if (isSeen) return act();
        await box.daemon.kill();
        await act();
        await sleep(pick(1_500));
        box.daemon = await home.up();
        kill.kills.manager += 1;
      };
      for (let open = count; open > agents; open = await look()) {
        const { engine: ended } = kill.kills;
        if (ended < 2 && open < (count * (2 - ended)) / 3) await strike(kill.engine, ended === 0);
        else await strike(kill.one, pick(3) > 0);
        await sleep(500 + pick(5_000));
      }
      await expect.poll(look, { timeout: 120_000, interval: 500 }).toBe(0);
      console.log(`kills: ${JSON.stringify(kill.kills)}`);
      for (const [what, times] of Object.entries(kill.kills)) expect(times, what).toBeGreaterThan(0);

      const wrong: unknown[] = [];
      const sums = { asItShould: 0, hit: 0, withEngine: 0 };
      // An attempt is an agent that was to have the job, also one that was killed before it began.
      for (const { id, agent, array: place, result } of told.values()) {
        const [begun, inside] = [filesOf('begun', id), filesOf('inside', id)];
        const log = await logOf(id);
        const whole = `ran ${place?.index}\n`;
        const isOnce = begun <= 1 && inside <= begun && ['', whole].includes(log);
        const isWhole = result?.kind === 'code' && result.code === (place?.index ?? -1) % 5 && inside === 1 && log === whole;
        const isHit = agent !== null && kill.hit.has(agent);
        const isLost = result?.kind === 'lost';
        const withEngine = isLost && /Engine/.test(result.reason);
        if (isOnce && isWhole) sums.asItShould += 1;
        else if (isOnce && isHit && (isLost || (result?.kind === 'code' && [98, 99].includes(result.code)))) sums.hit += 1;
        else if (isOnce && withEngine) sums.withEngine += 1;
        else wrong.push({ id, result, begun, inside, log, isHit });
      }
      console.log(`ends: ${JSON.stringify(sums)}`);
      expect(wrong).toEqual([]);
      expect(sums.withEngine).toBeLessThanOrEqual(kill.kills.engine * agents);
      const everything = { service: null, image: null, device: null, pool: null, since: null, until: null } as const;
      const [history] = await home.api.history({ by: 'pool', ...everything });
      expect(history).toMatchObject({ value: 'box', jobs: count });

      await box.daemon.stop();
      expect((await home.census()).left).toEqual([]);
      expect(await engine.api.ok('GET', '/containers/json?all=1')).toEqual([]);
      const { Volumes } = (await engine.api.ok('GET', '/volumes')) as { readonly Volumes: readonly unknown[] | null };
      expect(Volumes ?? []).toEqual([]);
      expect(readdirSync(join(home.stateDir, 'engines'))).toEqual([]);
      expect(inContainers(engine.dataRoot, home.dir)).toEqual([]);
      expect(mountsOf(engine)).toEqual([]);
    },
    count * 9_000 + 300_000,
  );
});
