import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { slotPage, withSlotTables } from './docs-slots.ts';

test('the state × event table in docs/slot-lifecycle.md is what the code does', () => {
  const page = readFileSync(slotPage, 'utf8');
  expect(page, 'run "npx node scripts/docs-slots.ts"').toBe(withSlotTables(page));
});

test('every state changes by some event, and no table is empty', () => {
  const page = readFileSync(slotPage, 'utf8');
  expect(page.match(/→ \*\*(standby|releasing|busy|killing)\*\*/g)?.length ?? 0).toBeGreaterThan(4);
});
