import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { packOwn } from './package.ts';

const files = ['install.sh', 'platform', 'dist/main.js', 'node_modules/node/bin/node', 'node_modules/.cache/onejob/x'];

function installed(folder: string, names = files) {
  const root = join(folder, '1.2.0');
  for (const name of names) {
    mkdirSync(dirname(join(root, name)), { recursive: true });
    writeFileSync(join(root, name), name);
  }
  return { root, dir: join(folder, 'state', 'cloud'), version: '1.2.0' };
}

describe('the package for machines', () => {
  it('is this onejob with its Node, packed once for as long as it is the same', async () => {
    using folder = scratch();
    const parts = installed(folder.path);
    const made = await packOwn(parts);
    const list = execFileSync('tar', ['-tzf', made?.path ?? ''], { encoding: 'utf8' });
    for (const name of files.slice(0, 4)) expect(list).toContain(`1.2.0/${name}\n`);
    expect(list).not.toContain('.cache/');
    expect(made?.sha256).toBe(
      createHash('sha256')
        .update(readFileSync(made?.path ?? ''))
        .digest('hex'),
    );
    expect(await packOwn(parts)).toEqual(made);
    // Installed again.
    utimesSync(parts.root, new Date(1e12), new Date(1e12));
    const second = await packOwn(parts);
    expect(second?.path).not.toBe(made?.path);
    expect(readdirSync(parts.dir)).toHaveLength(1);
  });

  it('cannot be made from a clone, or from what npm installed', async () => {
    using folder = scratch();
    expect(await packOwn(installed(folder.path, ['dist/main.js', 'package.json']))).toBeNull();
  });

  it('that cannot be written says where', async () => {
    using folder = scratch();
    const parts = installed(folder.path);
    await expect(packOwn({ ...parts, version: 'x/y' })).rejects.toMatchObject({ code: 'E_FILES', retry: true });
  });
});
