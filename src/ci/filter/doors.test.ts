/** Where the filter listens. */
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { choosePort, endFilter, readListenConfig, writeListenConfig } from './doors.ts';

const example = { version: '1', program: ['onejob'], port: 7070, addresses: ['127.0.0.1'], secure: [] };

it('the file is read as it was written; one that is missing or unreadable says nothing', () => {
  using dir = scratch();
  expect(readListenConfig(dir.path)).toBe(null);
  writeListenConfig(dir.path, example);
  expect(readListenConfig(dir.path)).toEqual(example);
  writeFileSync(join(dir.path, 'doors.json'), '{"version":');
  expect(readListenConfig(dir.path)).toBe(null);
});

it('an older version names no program', () => {
  using dir = scratch();
  const { program, ...older } = example;
  writeFileSync(join(dir.path, 'doors.json'), JSON.stringify(older));
  expect(program).not.toEqual([]);
  expect(readListenConfig(dir.path)).toEqual({ ...older, program: [] });
});

it('the port is kept when nobody needs the filter any more', () => {
  using dir = scratch();
  endFilter(dir.path);
  mkdirSync(join(dir.path, 'filter'));
  endFilter(dir.path);
  expect(readListenConfig(join(dir.path, 'filter'))).toBe(null);
  writeListenConfig(join(dir.path, 'filter'), example);
  endFilter(dir.path);
  expect(readListenConfig(join(dir.path, 'filter'))).toEqual({ ...example, addresses: [], secure: [] });
});

describe('a port for a filter that nobody uses yet', () => {
  const services = new Set<number>();
  const isRoot = process.getuid?.() === 0;

  it.runIf(isRoot)('is privileged under root, and none that another service is known for', async () => {
    const all = Array.from({ length: 1024 }, (_, port) => port);
    const but = new Set(all.filter((port) => port !== 777));
    expect(await choosePort(null, { unprivileged: 1024, services: but })).toBe(777);
    // To these `fetch` never connects.
    expect(await choosePort(null, { unprivileged: 640, services })).toBeGreaterThan(1023);
  });

  it('is any that is free where every user may take every port', async () => {
    expect(await choosePort(null, { unprivileged: 0, services })).toBeGreaterThan(1023);
  });

  it.runIf(isRoot)('is the one before only if that is privileged too', async () => {
    const free = await choosePort(null, { unprivileged: 0, services });
    expect(await choosePort(free, { unprivileged: 1024 })).toBeLessThan(1024);
    expect(await choosePort(free, { unprivileged: 0 })).toBe(free);
    expect(await choosePort(650, { unprivileged: 1024 })).toBe(650);
  });

  it('is another one if the one before is taken at any address', async () => {
    await using other = createServer().listen(0, '127.0.0.3');
    await once(other, 'listening');
    const { port } = other.address() as AddressInfo;
    expect(await choosePort(port, { unprivileged: 0, services })).not.toBe(port);
  });
});
