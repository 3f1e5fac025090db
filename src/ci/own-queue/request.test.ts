import { describe, expect, it } from 'vitest';
import { type JobRequest, jobRequest } from '../../api/schema.ts';
import type { Mount } from '../../runtimes/runtime.ts';
import { checkRequest, type QueuePool } from './request.ts';

const data: Mount = { host: '/data', container: '/in', readOnly: true, variable: null, cache: null };
const pool = {
  name: 'default',
  timeout: null,
  recipe: { image: 'x', mounts: [data] },
  devices: { count: 0 },
} as unknown as QueuePool;
const check = (volumes: JobRequest['volumes'], problem?: (mount: Mount) => string | null) =>
  checkRequest(jobRequest.parse({ command: ['true'], volumes }), new Map([['default', pool]]), problem);

describe('the volumes of a job', () => {
  it('are refused with the reason that is given for them', () => {
    expect(() => check([{ ...data, container: '/other' }], () => 'it holds secrets')).toThrow(
      expect.objectContaining({ code: 'E_JOB_REQUEST', message: 'Cannot mount /data at /other: it holds secrets.' }),
    );
  });

  it.each([
    ['/data/../etc', { host: '/data/../etc' }],
    ['/workspace', { container: '/workspace/' }],
    ['A=B', { variable: 'A=B' }],
  ])('are refused for their paths and names: %s', (_, more) => {
    expect(() => check([{ ...data, ...more }])).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST' }));
  });

  it('are refused twice at one place, however that is written', () => {
    expect(() => check([data, { ...data, host: '/more', container: '//in/' }])).toThrow(/another of its volumes/);
  });

  it('are kept in the one way of writing them; what the pool has already is not asked about', () => {
    const { volumes } = check([{ ...data, host: '/data//', container: '/./in' }], () => 'nothing new');
    expect(volumes).toEqual([data]);
  });
});
