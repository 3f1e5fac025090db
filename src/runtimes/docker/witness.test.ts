import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { look, lookAtHost } from './devices.ts';

const never = new AbortController().signal;
let proc: string;

beforeAll(() => {
  proc = mkdtempSync(join(tmpdir(), 'onejob-witness-'));
});
afterAll(() => rmSync(proc, { recursive: true }));

/** A process as /proc shows it. */
function fake(pid: number, about: { cmdline: string; environ: string }): string {
  const at = join(proc, String(pid));
  mkdirSync(join(at, 'root/dev'), { recursive: true });
  writeFileSync(join(at, 'cmdline'), about.cmdline);
  writeFileSync(join(at, 'environ'), about.environ);
  return join(at, 'root/dev');
}

test('the environment and the device nodes of a process are seen', async () => {
  const child = spawn('sh', ['-c', 'echo; read _ # onejob ready a1'], { env: { NVIDIA_VISIBLE_DEVICES: 'GPU-1', A: '1' } });
  await once(child.stdout, 'data');
  const sight = await look(child.pid ?? 0, 'a1', never);
  expect(sight).toMatchObject({ kind: 'seen', evidence: { visible: ['GPU-1'] } });
  // The Linux numbers of /dev/null.
  if (sight.kind === 'seen') expect(sight.evidence.nodes).toContainEqual({ name: 'null', major: 1, minor: 3 });
  child.stdin.end();
  await once(child, 'exit');
  expect(await look(child.pid ?? 0, 'a1', never)).toEqual({ kind: 'gone' });
});

test('each value of the variable is seen, including later ones', async () => {
  fake(11, { cmdline: 'init\0a1\0', environ: 'NVIDIA_VISIBLE_DEVICES=all\0X=1\0NVIDIA_VISIBLE_DEVICES=GPU-1\0' });
  expect(await look(11, 'a1', never, { proc })).toEqual({
    kind: 'seen',
    evidence: { visible: ['all', 'GPU-1'], nodes: [] },
  });
});

test('links and files are not nodes, and a link in place of a folder is not followed', async () => {
  const dev = fake(12, { cmdline: 'a1', environ: 'X=1\0' });
  writeFileSync(join(dev, 'nvidia0'), '');
  symlinkSync('/dev/null', join(dev, 'nvidia1'));
  symlinkSync('/dev', join(dev, 'dri'));
  expect(await look(12, 'a1', never, { proc })).toEqual({ kind: 'seen', evidence: { visible: [], nodes: [] } });
});

test('a process that becomes the gate during the look is awaited', async () => {
  fake(13, { cmdline: 'runc\0init\0', environ: 'X=1\0' });
  const seen = look(13, 'a1', never, { proc });
  fake(13, { cmdline: 'docker-init\0a1\0', environ: 'X=1\0' });
  expect((await seen).kind).toBe('seen');
});

test('another process is unknown, not wrong', async () => {
  fake(14, { cmdline: 'postgres\0', environ: 'X=1\0' });
  expect(await look(14, 'a1', never, { proc, most: 20 })).toEqual({
    kind: 'unseen',
    why: 'process 14 of this host is not the one that the Engine reports',
  });
});

test('a process that ends during the look is gone', async () => {
  fake(15, { cmdline: 'a1', environ: '' });
  expect(await look(15, 'a1', never, { proc })).toEqual({ kind: 'gone' });
  expect(await look(16, 'a1', never, { proc })).toEqual({ kind: 'gone' });
});

test('a look ends on request', async () => {
  fake(17, { cmdline: 'postgres\0', environ: 'X=1\0' });
  await expect(look(17, 'a1', AbortSignal.timeout(20), { proc })).rejects.toThrow();
});

test('a host without such cards has no data about them', async () => {
  const device = { uuid: 'GPU-1', kind: 'gpu', vendor: 'nvidia', index: 0, minor: 0, parent: null, mig: null } as const;
  const { drm } = await lookAtHost([
    { ...device, pciId: 'ffff:ff:1f.0' },
    { ...device, pciId: null },
  ]);
  expect([...drm]).toEqual([['ffff:ff:1f.0', []]]);
});
