import { describe, expect, test } from 'vitest';
import { countOf, mebibytes } from '../fields.ts';
import { cudaVersion, driverVersion, gpuUuid, isUsualUuid, migUuid, nvidiaText, troubleIn } from './values.ts';

describe('a missing value', () => {
  test.each([
    'N/A',
    '[N/A]',
    '[Not Supported]',
    'Not Supported',
    '[Unknown Error]',
    'Unknown Error',
    'ERR!',
    '[Insufficient Permissions]',
    '[Not Found]',
    'Not Found',
    'GPU is lost',
    '[GPU requires reset]',
    'Requested functionality has been deprecated',
    '[Requested functionality has been deprecated]',
    '',
  ])('%s is unknown', (text) => expect(nvidiaText(text)).toBeNull());

  test('none, as an action, is a value', () => expect(nvidiaText(' None ')).toBe('None'));
});

test('a card that says why it does not answer', () => {
  expect(troubleIn('GPU is lost')).toBe('lost');
  expect(troubleIn('[GPU requires reset]')).toBe('reset');
  expect(troubleIn('/usr/bin/lost-and-found')).toBeNull();
});

describe('memory', () => {
  test.each([
    ['81559 MiB', 81559],
    ['81559', 81559],
    ['0 MiB', 0],
    ['2 GiB', 2048],
    ['1048576 KiB', 1024],
    ['12.5 MiB', 12],
    ['-1 MiB', null],
    ['99999999999 MiB', null],
    ['1e9 MiB', null],
    ['lots', null],
  ])('%s', (text, amount) => expect(mebibytes(text)).toBe(amount));
});

test('numbers are whole and have an end', () => {
  expect(countOf('7', 10)).toBe(7);
  expect(countOf('11', 10)).toBeNull();
  expect(countOf('-1', 10)).toBeNull();
  expect(countOf('0x1', 10)).toBeNull();
});

describe('versions are cut where the number ends', () => {
  test.each([
    ['610.57.04 [Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]', '610.57.04'],
    ['595.84', '595.84'],
    ['352.99', '352.99'],
    ['Deprecated, see "KMD version" instead', null],
    ['N/A', null],
    ['1.2', null],
  ])('driver %s', (text, version) => expect(driverVersion(text)).toBe(version));

  test.each([
    ['13.3 [Deprecated; will be removed in CUDA 14.0. Use CUDA UMD Version instead]', '13.3'],
    ['9.2', '9.2'],
    ['Not Found', null],
    ['12', null],
  ])('CUDA %s', (text, version) => expect(cudaVersion(text)).toBe(version));
});

describe('a UUID', () => {
  test.each([
    ['GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16', true],
    // Jetsons leave GPU- out.
    ['54d0709b-558d-5a59-9c65-0c5fc14a21a4', true],
    ['GPU-XXX9-b02c-1c4ca42113c8', true],
    ['GPU-????????-????-????-????-????????????', false],
    ['MIG-7fdaf0a5-179b-f636-d15d-daf243e3ff16', false],
    ['[removed]', false],
    ['GPU is lost', false],
    ['N/A', false],
    ['GPU-7fda f0a5', false],
  ])('of a GPU: %s', (text, good) => expect(gpuUuid(text)).toBe(good ? text : null));

  test('of an instance: old drivers put its ids in it, new ones do not', () => {
    const gpu = 'GPU-4200ccc0-2667-d4cb-9137-f932c716232a';
    expect(migUuid(`MIG-${gpu}/13/0`)).toEqual({ uuid: `MIG-${gpu}/13/0`, gpuInstance: '13', computeInstance: '0' });
    const uuid = 'MIG-feb88891-0321-5fef-9c87-d4af3b54259e';
    expect(migUuid(uuid)).toEqual({ uuid, gpuInstance: null, computeInstance: null });
    for (const none of [gpu, `MIG-${gpu}`, `MIG-${gpu}/1`, '[N/A]', '']) expect(migUuid(none)).toBeNull();
  });

  test('what is masked or cut does not look like the others', () => {
    expect(isUsualUuid('GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16')).toBe(true);
    expect(isUsualUuid('GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff1')).toBe(false);
    expect(isUsualUuid('GPU-XXX9-b02c-1c4ca42113c8')).toBe(false);
  });
});
