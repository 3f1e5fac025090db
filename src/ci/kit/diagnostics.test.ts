import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { Readable } from 'node:stream';
import { expect, it } from 'vitest';
import { failureOf, patient } from '../../../test/kit/azure.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { agentLogsPath } from '../../logs/agent-logs.ts';
import { systemClock } from '../../system/system-clock.ts';
import { diagLimit, keepDiagnostics } from './in-image.ts';

const all = () => Promise.reject(new Error('not asked for'));
const mebibyte = Buffer.alloc(2 ** 20, 'x');

it('keeps at most ten MiB, for nobody else to read, and ends what has more', async () => {
  using dir = scratch();
  let read = 0;
  const source = Readable.from(
    (function* () {
      for (; read < 1_000; read += 1) yield mebibyte;
    })(),
  );
  await keepDiagnostics(systemClock, dir.path, 'a1', { all, folder: async () => source }, patient);
  const { size, mode } = statSync(agentLogsPath(dir.path, 'a1'));
  expect({ size, mode: mode & 0o777, isOver: source.destroyed }).toEqual({ size: diagLimit, mode: 0o600, isOver: true });
  expect(read).toBeLessThan(30);
});

it('leaves no file of an agent without logs, and none half-way', async () => {
  using dir = scratch();
  await keepDiagnostics(systemClock, dir.path, 'a1', { all, folder: async () => null }, patient);
  expect(existsSync(agentLogsPath(dir.path, 'a1'))).toBe(false);
  const broken = Readable.from(
    (function* () {
      yield mebibyte;
      throw new Error('cut');
    })(),
  );
  await failureOf(keepDiagnostics(systemClock, dir.path, 'a1', { all, folder: async () => broken }, patient));
  expect(readdirSync(`${dir.path}/diag`)).toEqual([]);
});

it('keeps the same again', async () => {
  using dir = scratch();
  const folder = async () => Readable.from([Buffer.from('tar')]);
  await keepDiagnostics(systemClock, dir.path, 'a1', { all, folder }, patient);
  await keepDiagnostics(systemClock, dir.path, 'a1', { all, folder }, patient);
  expect(readFileSync(agentLogsPath(dir.path, 'a1'), 'utf8')).toBe('tar');
});

it('does not wait forever for logs that never end, or never come', async () => {
  using dir = scratch();
  const stalled = new Readable({ read() {} });
  stalled.push('tar');
  const folder = async () => stalled;
  const late = expect.objectContaining({ message: expect.stringContaining('within 0.03 s') });
  expect(await failureOf(keepDiagnostics(systemClock, dir.path, 'a1', { all, folder }, patient, 30))).toEqual(late);
  expect(stalled.destroyed).toBe(true);
  expect(readdirSync(`${dir.path}/diag`)).toEqual([]);
  const never = (_: string, signal: AbortSignal) =>
    new Promise<null>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  expect(await failureOf(keepDiagnostics(systemClock, dir.path, 'a1', { all, folder: never }, patient, 30))).toEqual(late);
});
