import { describe, expect, it } from 'vitest';
import { fits } from './queue-watch.ts';

const tags = ['gpu=a100', 'cuda=12', 'cuda=13', 'multigpu', 'note=a=b'];

describe('an agent fits a job', () => {
  it.each([
    [[]],
    [['queue=gpu']],
    [['gpu=a100', 'cuda=13']],
    [['cuda=12', 'cuda=13']],
    [['gpu=*']],
    [['multigpu']],
    [['multigpu=true']],
    [['note=a=b']],
    [[' gpu = a100 ']],
  ])('whose rules are %j', (rules) => {
    expect(fits(rules, 'gpu', tags)).toBe(true);
  });

  it.each([
    [['queue=cpu']],
    [['gpu=A100']],
    [['gpu=a']],
    [['gpu=a*']],
    [['cuda=14', 'gpu=a100']],
    [['rocm=*']],
    [['gpu']],
    [['constructor=*']],
    [['']],
  ])('but not one whose rules are %j', (rules) => {
    expect(fits(rules, 'gpu', tags)).toBe(false);
  });
});
