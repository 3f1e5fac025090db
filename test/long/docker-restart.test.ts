/** S6: what an Engine's own end does to sandboxes, with a private Engine that may be stopped. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { frame, readyMarker } from '../../src/runtimes/gate.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { follow, specOf, watch } from '../kit/runtime-contract/contract.ts';
import { privateEngine } from '../support/dockerd.ts';
import { ensureImages } from '../support/images.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const never = () => new AbortController().signal;

describe.skipIf(lacks('docker', 'dockerd', 'busybox'))('an Engine that goes away', { timeout: 120_000 }, () => {
  const setUp = async (liveRestore: boolean) => {
    await using parts = new AsyncDisposableStack();
    const flags = parts.use(scratch());
    const engine = parts.use(await privateEngine({ liveRestore }));
    await ensureImages(engine.socket);
    const { make } = anOwner(engine.socket);
    const runtime = await make();
    const events = watch(runtime);
    await events.connected();
    const mounts = [{ host: flags.path, container: '/flags', readOnly: true, variable: null, cache: null }];
    const job = async (script: string | null) => {
      const spec = specOf({ ...recipe, mounts });
      await runtime.prepare(spec, () => {}, never());
      const log = follow(runtime, spec.agent);
      await log.until(readyMarker(spec.agent));
      if (script !== null) await runtime.release(spec.agent, frame(spec.agent, script), never());
      return { agent: spec.agent, log };
    };
    /** Lets go the jobs that wait for the file. */
    const go = (name = 'go') => writeFileSync(join(flags.path, name), '');
    return { all: parts.move(), engine, runtime, make, events, job, go };
  };

  for (const how of ['stop', 'kill'] as const) {
    test(`without live-restore (${how}): its containers are lost, whatever their exit code; earlier ends stand`, async () => {
      const { all, engine, runtime, make, events, job } = await setUp(false);
      await using _ = all;
      const done = await job('exit 4');
      expect(await events.exit(done.agent)).toEqual({ kind: 'code', code: 4 });
      const standby = await job(null);
      const polite = await job('trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.05; done');
      await polite.log.until('up\n');
      const plain = await job('echo up; exec sleep 600');
      await plain.log.until('up\n');

      await engine[how]();
      await expect.poll(() => events.seen.some((event) => event.kind === 'lost')).toBe(true);
      await expect(runtime.list(never())).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
      await expect(job('true')).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
      await engine.start();
      await expect.poll(() => events.seen.filter((event) => event.kind === 'connected').length, { timeout: 20_000 }).toBe(2);

      expect(events.seen.filter((event) => event.kind === 'lost')).toHaveLength(1);
      const codes = events.seen.filter((event) => event.kind === 'exited' && event.exit.kind !== 'lost');
      expect(codes).toEqual([{ kind: 'exited', agent: done.agent, exit: { kind: 'code', code: 4 } }]);
      for (const seer of [runtime, await make()]) {
        const seen = new Map((await seer.list(never())).map((one) => [one.agent, one.state]));
        for (const { agent } of [standby, polite, plain]) {
          expect(seen.get(agent)).toMatchObject({ kind: 'exited', exit: { kind: 'lost' } });
        }
      }
      await Promise.all([standby, polite, plain].map(({ log }) => log.ended));
      await events.stop();
    });

    test(`with live-restore (${how}): standby and job continue, and no line of what runs is lost`, async () => {
      const { all, engine, runtime, make, events, job, go } = await setUp(true);
      await using _ = all;
      const standby = await job(null);
      // What a job writes while the Engine is away is lost if it also ends before its return (20.10, measured).
      const until = 'until [ -e /flags/go ]';
      const counting = await job(`i=0; ${until}; do echo "line $i"; i=$((i+1)); sleep 0.01; done; echo "lines: $i"; exit 7`);
      const brief = await job('until [ -e /flags/brief ]; do sleep 0.05; done; echo meanwhile; exit 8');
      await counting.log.until('line 20\n');
      await engine[how]();
      await expect.poll(() => events.seen.some((event) => event.kind === 'lost')).toBe(true);
      go('brief');
      // A manager that starts while the Engine is away.
      const later = await make();
      const late = follow(later, counting.agent);
      await expect(later.list(never())).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' });
      await new Promise((resolve) => setTimeout(resolve, 1_500));
      await engine.start();

      await expect.poll(() => events.seen.filter((event) => event.kind === 'connected').length, { timeout: 20_000 }).toBe(2);
      go();
      await runtime.release(standby.agent, frame(standby.agent, 'echo after; exit 9'), never());
      expect(await events.exit(standby.agent)).toEqual({ kind: 'code', code: 9 });
      expect(await events.exit(counting.agent)).toEqual({ kind: 'code', code: 7 });
      await Promise.all([standby, counting, brief].map(({ log }) => log.ended));
      expect(standby.log.text()).toContain('after\n');
      const length = Number(/^lines: (\d+)$/m.exec(counting.log.text())?.[1]);
      expect(counting.log.text()).toContain(`\n${Array.from({ length }, (_, i) => `line ${i}\n`).join('')}lines: ${length}\n`);
      await late.ended;
      expect(late.text()).toBe(counting.log.text());
      for (const seer of [runtime, await make()]) {
        const seen = new Map((await seer.list(never())).map((one) => [one.agent, one.state]));
        const state = seen.get(brief.agent);
        // After a crash the code itself may be lost, too; never is another one told.
        if (how === 'stop' || (state?.kind === 'exited' && state.exit.kind === 'code')) {
          expect(state).toEqual({ kind: 'exited', exit: { kind: 'code', code: 8 } });
        } else expect(state).toMatchObject({ kind: 'exited', exit: { kind: 'lost' } });
      }
      await events.stop();
    });
  }

  test('a frozen Engine starts nothing twice and is said once', async () => {
    const { all, engine, runtime, events, job } = await setUp(false);
    await using _ = all;
    const standby = await job(null);
    engine.freeze();
    const hurry = AbortSignal.timeout(1_000);
    await expect(runtime.list(hurry)).rejects.toThrow();
    engine.thaw();
    expect((await runtime.list(never())).map((one) => one.state)).toEqual([{ kind: 'running' }]);
    await runtime.release(standby.agent, frame(standby.agent, 'exit 3'), never());
    expect(await events.exit(standby.agent)).toEqual({ kind: 'code', code: 3 });
    await events.stop();
  });
});
