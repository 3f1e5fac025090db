import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { emptyEnvironment } from '../../../test/kit/config.ts';
import { card } from '../../../test/kit/images.ts';
import { testContext } from '../../../test/support/cli-context.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import { type Starting, waysToStart } from '../service.ts';
import { types } from '../types.ts';
import { ownQueueFile } from './steps.ts';

const pools = (...args: Parameters<typeof ownQueueFile>) => parse(ownQueueFile(...args).text).pools;

describe('the config for the own queue', () => {
  it('has half as many agents as cores, one at least and eight at most', () => {
    expect(pools({ devices: [] }, 1)).toEqual({ default: { agents: 1 } });
    expect(pools({ devices: [] }, 8)).toEqual({ default: { agents: 4 } });
    expect(pools({ devices: [] }, 256)).toEqual({ default: { agents: 8 } });
  });

  it('has a pool with an agent for each card, if there are cards', () => {
    expect(pools({ devices: [card('NVIDIA A100', '8.0')] }, 2).gpu).toEqual({ agents: 'per-device', devices: { count: 1 } });
  });

  it('is written where a daemon looks, is valid, and is not overwritten', async () => {
    using dir = scratch();
    const file = join(dir.path, 'config.yml');
    const init = async (...more: string[]) => {
      const { context, stdout, stderr } = testContext(['init', 'own-queue', '--config', file, ...more], dir.path);
      // No tool of a vendor is found there, and no card.
      const environment = { ...context.environment, path: dir.path, hostRoot: dir.path };
      return { code: await runCli({ ...context, environment }), stdout: stdout(), stderr: stderr() };
    };
    expect(await init()).toMatchObject({ code: 0, stdout: expect.stringContaining(`onejob up --config ${file}`) });
    const { config, errors, warnings } = await checkConfig({
      types,
      look: lookAtHost,
      flags: { config: file },
      env: emptyEnvironment(),
    });
    expect({ errors, warnings, pools: config.pools.map(({ name }) => name) }).toEqual({
      errors: [],
      warnings: [],
      pools: ['default'],
    });
    writeFileSync(file, 'mine');
    expect(await init()).toMatchObject({ code: 1, stderr: expect.stringContaining('Refusing to overwrite the existing file') });
    expect(readFileSync(file, 'utf8')).toBe('mine');
    expect((await init('--force')).code).toBe(0);
  });

  it('makes the folder of the config, but not those above it', async () => {
    using dir = scratch();
    const init = async (file: string) => {
      const { context, stderr } = testContext(['init', 'own-queue', '--config', file], dir.path);
      return {
        code: await runCli({ ...context, environment: { ...context.environment, path: dir.path, hostRoot: dir.path } }),
        stderr: stderr(),
      };
    };
    expect(await init('etc/onejob/config.yml')).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(
        /Cannot write \S+etc\/onejob\/config\.yml: \S+\/etc does not exist\.\n.*mkdir -p \S+etc\/onejob/,
      ),
    });
    expect(readdirSync(dir.path)).toEqual([]);
    expect((await init('onejob/config.yml')).code).toBe(0);
  });
});

describe('the next step after it', () => {
  const installed: Starting = { isClone: false, hasSystemd: true, hasUnit: false, user: false, config: null };

  it.each<[string, Partial<Starting>, string]>([
    ['a release', {}, 'onejob service install'],
    ['a release, for a user', { user: true }, 'onejob service install --user'],
    ['a service that finds the config by itself', { hasUnit: true }, 'onejob config apply'],
    ['a service that may have another config', { hasUnit: true, config: '/c.yml' }, 'onejob service install --config /c.yml'],
    ['a clone', { isClone: true, config: '/c.yml' }, 'onejob up --config /c.yml'],
    ['a machine without systemd', { hasSystemd: false }, 'onejob up'],
  ])('%s', (_, differs, command) => {
    expect(waysToStart({ ...installed, ...differs })[0]).toBe(command);
  });
});
