import { expect, test } from 'vitest';
import { gradeXid, type XidGrade } from './xid.ts';

const expected: Record<Exclude<XidGrade, 'unknown'>, number[]> = {
  application: [13, 31, 32, 43, 45, 68, 69, 94],
  reset: [46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
  restart: [79, 151],
  hardware: [74, 81, 122, 123, 144, 145, 146, 147, 148, 149, 150],
  info: [63, 92, 93, 121, 137, 154, 157, 160, 161],
};

test.each(Object.entries(expected))('%s: these and no others', (grade, xids) => {
  const all = Array.from({ length: 400 }, (_, xid) => xid).filter((xid) => gradeXid(xid).grade === grade);
  expect(all).toEqual(xids);
  for (const xid of xids) expect(gradeXid(xid).meaning).not.toBe('');
});

test.each([0, -1, 7, 14, 173, 9999, Number.NaN, 1.5])('%d is unknown, which is not harmless', (xid) => {
  expect(gradeXid(xid).grade).toBe('unknown');
});
