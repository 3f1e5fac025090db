import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { readEnvironment } from '../../config/environment.ts';
import { resolveEndpoint } from './endpoint.ts';

test.each(['', ' \n', '{}'])('an empty config.json of Docker is as none: %j', async (text) => {
  using dir = scratch();
  writeFileSync(join(dir.path, 'config.json'), text);
  const { docker } = readEnvironment({ HOME: dir.path, DOCKER_CONFIG: dir.path });
  expect(await resolveEndpoint(docker)).toMatchObject({ kind: 'unix', from: 'the usual place' });
});

test('a damaged one is an error', async () => {
  using dir = scratch();
  writeFileSync(join(dir.path, 'config.json'), '{');
  const { docker } = readEnvironment({ HOME: dir.path, DOCKER_CONFIG: dir.path });
  await expect(resolveEndpoint(docker)).rejects.toMatchObject({ code: 'E_ENGINE_ADDRESS' });
});
