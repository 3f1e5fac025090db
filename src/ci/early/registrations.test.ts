import { expect, it } from 'vitest';
import { AgentNames } from './registrations.ts';

const marks = new AgentNames('0123456789ab');

it('knows its own agents by their names, for any name in the pool', () => {
  expect(marks.agentName('box-1', 'a1b2c3d4e5')).toBe('box-1-01234567-a1b2c3d4e5');
  expect(marks.agentOf('box-1-01234567-a1b2c3d4e5')).toBe('a1b2c3d4e5');
  expect(marks.agentOf(marks.agentName(marks.agentName('x', 'a1'), 'b2'))).toBe('b2');
});

it.each(['box-1', 'box-1-01234568-a1', '01234567-a1', 'box-1-01234567-', 'box-1-01234567-a1-2', 'box-01234567-A1'])(
  'knows other agents by their names: %s',
  (name) => {
    expect(marks.agentOf(name)).toBeNull();
    expect(marks.isPlaceholder(name)).toBe(false);
  },
);

it('tells placeholders from agents, and its own from those of others', () => {
  const name = marks.placeholderName('a set');
  expect(name).toMatch(/^onejob-placeholder-01234567-[0-9a-f]{8}$/);
  expect(marks.placeholderName('another set')).not.toBe(name);
  expect([marks.isPlaceholder(name), marks.agentOf(name)]).toEqual([true, null]);
  expect(new AgentNames('ffffffffffff').isPlaceholder(name)).toBe(false);
});
