import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, describe, expect, it } from 'vitest';
import type { AgentId } from '../../core/slot.ts';
import type { LogChunk, Runtime, SandboxSpec } from '../../ports/runtime.ts';
import { answering, gateScript } from '../../runtimes/gate.ts';
import { systemClock } from '../../system/system-clock.ts';
import { createSandboxProbe, type SandboxProbe } from './probe-sandbox.ts';

/** Sandboxes that are nothing but a gate of their own each. */
class Gates {
  readonly made: SandboxSpec[] = [];
  readonly removed: AgentId[] = [];
  readonly #children = new Map<AgentId, ChildProcess>();
  /** Fails the next one that is to be made. */
  broken: Error | null = null;
  /** Called when one is made. */
  prepared = (): void => {};

  readonly runtime = {
    capabilities: { images: true },
    prepare: async (spec: SandboxSpec) => {
      if (this.broken !== null) throw this.broken;
      this.made.push(spec);
      const gate = gateScript(spec.agent);
      const script = spec.look === undefined ? gate : `${answering(spec.agent, spec.look)}\n${gate}`;
      this.#children.set(spec.agent, spawn('/bin/sh', ['-c', script], { stdio: ['pipe', 'pipe', 'pipe'] }));
      this.prepared();
      return { fingerprint: 'f' };
    },
    release: async (agent: AgentId, frame: Uint8Array) => void this.#children.get(agent)?.stdin?.write(frame),
    logs: (agent: AgentId, _: unknown, signal: AbortSignal) => this.#logs(agent, signal),
    remove: async (agent: AgentId) => {
      const child = this.#children.get(agent);
      this.removed.push(agent);
      if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
  } as unknown as Runtime;

  async *#logs(agent: AgentId, signal: AbortSignal): AsyncGenerator<LogChunk[]> {
    const child = this.#children.get(agent);
    if (child?.stdout == null) return;
    const stop = () => child.stdout?.destroy(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    for await (const bytes of child.stdout) yield [{ stream: 'stdout', time: 1n, bytes }];
  }

  async close(): Promise<void> {
    for (const agent of this.#children.keys()) await this.runtime.remove(agent);
  }
}

let gates: Gates;
let count = 0;
afterEach(() => gates.close());

const open = (patience?: number): SandboxProbe => {
  gates = new Gates();
  return createSandboxProbe(systemClock, () => `guest${++count}`, patience);
};
const recipe = { image: 'x', mounts: [{ host: '/data' }], network: 'default', env: { A: '1' } };
const spec = { agent: 'a1', pool: 'ci', slot: 'ci/1', name: 'box-1', recipe, devices: ['GPU-1'] } as unknown as SandboxSpec;
const ask = (probe: SandboxProbe, script: string, signal = new AbortController().signal, fingerprint = 'f') =>
  probe.ask({ runtime: gates.runtime, spec, fingerprint, script }, signal);

it('returns the output of a script in its own sandbox, without devices, mounts and network, and removes it', async () => {
  const probe = open();
  expect(await ask(probe, "printf 'one\\ntwo'; echo aside >&2")).toBe('one\ntwo');
  const [made] = gates.made;
  expect(made).toMatchObject({ devices: [], recipe: { mounts: [], network: 'none', env: { A: '1' }, image: 'x' } });
  expect(made?.agent).not.toBe('a1');
  expect(gates.removed).toEqual([made?.agent]);
  expect(probe.isProbe(made?.agent ?? '')).toBe(false);
});

it('a look has the mounts and the network of an agent, and is never remembered', async () => {
  const probe = open();
  const look = () => probe.look({ runtime: gates.runtime, spec, script: 'echo $$' }, new AbortController().signal);
  expect(await look()).not.toBe(await look());
  expect(gates.made).toHaveLength(2);
  expect(gates.made[0]).toMatchObject({ devices: [], recipe: { mounts: [{ host: '/data' }], network: 'default' } });
  expect(gates.removed).toEqual(gates.made.map(({ agent }) => agent));
});

it('asks once per fingerprint and script, for any number of callers', async () => {
  const probe = open();
  const answers = await Promise.all([ask(probe, 'echo $$'), ask(probe, 'echo $$'), ask(probe, 'echo $$')]);
  expect(new Set([...answers, await ask(probe, 'echo $$')]).size).toBe(1);
  expect(gates.made).toHaveLength(1);
  await ask(probe, 'echo $$', undefined, 'another');
  await ask(probe, 'echo $((1 + 1))');
  expect(gates.made).toHaveLength(3);
});

it.each([
  ['exit 3', 'ended with exit code 3'],
  ['kill -9 $$', 'did not finish'],
])('rejects an incomplete answer, and asks again: %s', async (script, message) => {
  const probe = open();
  const failing = ask(probe, script);
  await expect(failing).rejects.toMatchObject({ code: 'E_GATE_ENDED', retry: true, message: expect.stringContaining(message) });
  await expect(ask(probe, script)).rejects.toThrow(message);
  expect(gates.made).toHaveLength(2);
  expect(gates.removed).toHaveLength(2);
});

it('passes on why no sandbox could be made, and tries again the next time', async () => {
  const probe = open();
  gates.broken = new Error('no such image');
  await expect(ask(probe, 'echo hello')).rejects.toThrow('no such image');
  gates.broken = null;
  expect(await ask(probe, 'echo hello')).toBe('hello\n');
});

it('does not wait for ever', async () => {
  const probe = open(50);
  await expect(ask(probe, 'sleep 60')).rejects.toMatchObject({ code: 'E_GATE_ENDED', message: /took more than 0\.05 s/ });
  expect(gates.removed).toHaveLength(1);
});

it('continues for the others when the first caller leaves', async () => {
  const probe = open();
  const abort = new AbortController();
  const first = ask(probe, 'echo hello', abort.signal);
  const second = ask(probe, 'echo hello');
  abort.abort();
  await expect(first).rejects.toThrow('aborted');
  expect(await second).toBe('hello\n');
  expect(gates.made).toHaveLength(1);
});

it('has removed the sandbox when the last caller has left, and serves later ones', async () => {
  const probe = open();
  const abort = new AbortController();
  gates.prepared = () => abort.abort();
  await expect(ask(probe, 'echo hello', abort.signal)).rejects.toThrow('aborted');
  expect(gates.removed).toHaveLength(1);
  gates.prepared = () => {};
  expect(await ask(probe, 'echo hello')).toBe('hello\n');
});

it('remembers a limited number of answers', async () => {
  const probe = open();
  await expect(ask(probe, "i=0; while [ $i -lt 5000 ]; do printf '%0100d' 0; i=$((i + 1)); done")).rejects.toThrow(
    'did not finish',
  );
});

describe('where an engine places sandboxes', () => {
  /** The agent's own sandbox, and what is asked of it. */
  async function agentWith(look: string | undefined) {
    const probe = open();
    Object.assign(gates.runtime, { capabilities: { images: false, grants: 'engine' } });
    await gates.runtime.prepare({ ...spec, ...(look !== undefined && { look }) }, () => {}, new AbortController().signal);
    return () => ask(probe, 'echo not this one');
  }

  it("is answered by the agent's own, before its gate, and makes no other", async () => {
    const asked = await agentWith('cat; printf "one\\ntwo"');
    expect(await asked()).toBe('one\ntwo');
    expect(gates.made).toHaveLength(1);
    expect(gates.removed).toEqual([]);
  });

  it.each([
    ['exit 3', 'ended with exit code 3'],
    // One that an earlier onejob has made.
    [undefined, 'did not finish'],
  ])('rejects an incomplete answer: %s', async (look, message) => {
    const asked = await agentWith(look);
    await expect(asked()).rejects.toMatchObject({ code: 'E_GATE_ENDED', retry: true, message: expect.stringContaining(message) });
  });
});
