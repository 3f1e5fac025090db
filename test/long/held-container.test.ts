/** Held containers on a real Engine, when their image takes long or somebody removes them. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { AgentId } from '../../src/core/slot.ts';
import type { Holding } from '../../src/ports/runtime.ts';
import type { DockerRuntime } from '../../src/runtimes/docker/docker.ts';
import { frame, readyMarker } from '../../src/runtimes/gate.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { follow, specOf, watch } from '../kit/runtime-contract/contract.ts';
import { engineAt } from '../support/engine-http.ts';
import { type HeldEngine, heldEngine } from '../support/held-engine.ts';
import { ensureImages } from '../support/images.ts';
import { lacks } from '../support/require.ts';

const never = () => new AbortController().signal;

describe.skipIf(lacks('docker', 'busybox'))('a held container', { timeout: 60_000 }, () => {
  let between: HeldEngine;
  let runtime: DockerRuntime;
  let holding: Holding;
  let events: ReturnType<typeof watch>;
  let owned: ReturnType<typeof anOwner>;
  const engine = engineAt();

  beforeAll(async () => {
    await ensureImages();
    between = await heldEngine();
    owned = anOwner(between.socket);
    runtime = await owned.make();
    if (runtime.holding === undefined) throw new Error('it holds nothing');
    holding = runtime.holding;
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    for (const { agent } of await runtime.list(never())) await runtime.remove(agent);
    await holding.sweep(new Set(), never());
    await runtime.sweep(never());
    await events.stop();
    runtime.close();
    expect(await owned.leftovers()).toEqual([]);
    between[Symbol.dispose]();
    engine[Symbol.dispose]();
  });

  const failed = async (script = 'echo data >out; exit 1'): Promise<AgentId> => {
    const spec = specOf(recipe);
    await runtime.prepare(spec, () => {}, never());
    await follow(runtime, spec.agent).until(readyMarker(spec.agent));
    await runtime.release(spec.agent, frame(spec.agent, script), never());
    await events.exit(spec.agent);
    expect(await holding.hold(spec.agent)).toBe(true);
    return spec.agent;
  };
  const cat = async (agent: AgentId, signal = never()) => {
    const shell = await holding.shell(agent, { spec: specOf(recipe), command: ['cat', 'out'], terminal: null }, signal);
    let text = '';
    for await (const { bytes } of shell.output) text += Buffer.from(bytes).toString();
    return { text, code: await shell.ended };
  };
  const listed = async (what: string, label: string): Promise<unknown[]> => {
    const filters = encodeURIComponent(JSON.stringify({ label: [label] }));
    const answer = (await engine.ok('GET', `/${what}?all=1&filters=${filters}`)) as { Volumes: unknown[] | null } | unknown[];
    return Array.isArray(answer) ? answer : (answer.Volumes ?? []);
  };
  const imagesOf = (agent: AgentId) => listed('images/json', `onejob.held=${agent}`);

  test('of which two shells are opened at once has one image', async () => {
    const agent = await failed();
    const made = between.hold(/^POST \S*\/commit/);
    const shells = [cat(agent), cat(agent)];
    await (await made).letGo();
    expect(await Promise.all(shells)).toEqual([
      { text: 'data\n', code: 0 },
      { text: 'data\n', code: 0 },
    ]);
    expect(await imagesOf(agent)).toHaveLength(1);
    await holding.release(agent);
    expect(await imagesOf(agent)).toEqual([]);
  });

  test('whose image takes long lets its client go, and the image that comes later is found', async () => {
    const agent = await failed();
    const made = between.hold(/^POST \S*\/commit/);
    const [first, second] = [new AbortController(), new AbortController()];
    const shells = [first, second].map(({ signal }) => expect(cat(agent, signal)).rejects.toThrow('the client has gone'));
    const { letGo } = await made;
    for (const one of [first, second]) one.abort(new Error('the client has gone'));
    await Promise.all(shells);
    // The Engine continues with what it has begun.
    await letGo();
    expect(await imagesOf(agent)).toHaveLength(1);
    await holding.sweep(new Set([agent]), never());
    expect(await cat(agent)).toEqual({ text: 'data\n', code: 0 });
    expect(await imagesOf(agent)).toHaveLength(1);
    await runtime.remove(agent);
    await holding.sweep(new Set(), never());
    expect(await imagesOf(agent)).toEqual([]);
  });

  test('is measured with what an open shell has written, in the workspace and elsewhere', async () => {
    const agent = await failed();
    const megabytes = async () => Math.round(((await runtime.usage?.(agent, never())) ?? Number.NaN) / 1e6);
    const before = await megabytes();
    const stop = new AbortController();
    const script = 'head -c 3000000 /dev/zero >more; head -c 5000000 /dev/zero >/tmp/more; echo written; sleep 600';
    const command = ['sh', '-c', script];
    const shell = await holding.shell(agent, { spec: specOf(recipe), command, terminal: null }, stop.signal);
    for await (const _ of shell.output) {
      expect(await megabytes()).toBe(before + 8);
      stop.abort(new Error('enough'));
    }
    await expect(shell.ended).rejects.toThrow('enough');
    // Only the workspace stays.
    expect(await megabytes()).toBe(before + 3);
    await holding.release(agent);
  });

  test('that somebody removed leaves no workspace when its hold ends', async () => {
    const agent = await failed();
    const other = await failed();
    const containers = (await listed('containers/json', `onejob.agent=${agent}`)) as { Id: string }[];
    for (const { Id } of containers) await engine.ok('DELETE', `/containers/${Id}?force=1`);
    expect(await listed('volumes', `onejob.agent=${agent}`)).toHaveLength(1);
    await holding.release(agent);
    expect(await listed('volumes', `onejob.agent=${agent}`)).toEqual([]);
    expect(await listed('volumes', `onejob.agent=${other}`)).toHaveLength(1);
    await holding.release(other);
  });
});
