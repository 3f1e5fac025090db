/** `service upgrade ARCHIVE` of an installed onejob, with programs that take the place of systemd's: what is checked before it installs. */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { lacks } from '../../test/support/require.ts';
import { scratch } from '../../test/support/scratch.ts';

const root = join(import.meta.dirname, '..', '..');
const name = 'onejob-9.0.0-linux-x64.tar.gz';

/** An onejob in `versions/1.0.0`, and an archive whose installer leaves a file when it runs. */
function host() {
  const here = scratch();
  const at = (...path: string[]) => join(here.path, ...path);
  const installed = at('versions', '1.0.0');
  mkdirSync(installed, { recursive: true });
  cpSync(join(root, 'src'), join(installed, 'src'), { recursive: true, filter: (path) => !path.endsWith('.test.ts') });
  cpSync(join(root, 'package.json'), join(installed, 'package.json'));
  symlinkSync(join(root, 'node_modules'), join(installed, 'node_modules'));
  symlinkSync('1.0.0', at('versions', 'current'));
  mkdirSync(at('bin'));
  const systemctl = (show: string, unit: string) =>
    writeFileSync(
      at('bin', 'systemctl'),
      `#!/bin/sh\ncase "$*" in *'show onejob'*) echo '${show}' ;; *'cat onejob'*) cat <<'END'\n${unit}\nEND\n;; esac\n`,
    );
  systemctl('MainPID=0', '');
  chmodSync(at('bin', 'systemctl'), 0o755);
  mkdirSync(at('onejob-9.0.0'));
  writeFileSync(at('onejob-9.0.0', 'install.sh'), `touch ${at('installer-ran')}\n`);
  execFileSync('tar', ['-C', here.path, '-czf', at(name), 'onejob-9.0.0']);
  const env = { PATH: `${at('bin')}:${process.env.PATH}`, HOME: here.path };
  return {
    at,
    /** What systemd says about the service from now on. */
    systemctl,
    minisign: (...args: string[]) => execFileSync('minisign', args, { cwd: here.path, stdio: ['ignore', 'pipe', 'pipe'] }),
    hasInstalled: () => existsSync(at('installer-ran')),
    upgrade: (...words: string[]) => {
      const args = [join(installed, 'src', 'main.ts'), 'service', 'upgrade', '--user', at(name), ...words];
      const { status, stderr } = spawnSync(process.execPath, args, { cwd: here.path, env, encoding: 'utf8' });
      return { code: status, stderr: stderr.replaceAll(/\s+/g, ' ') };
    },
    [Symbol.dispose]: () => here[Symbol.dispose](),
  };
}

test.skipIf(lacks('minisign'))(
  'service upgrade runs the installer of an archive that minisign signed with the key of the config, and of no other',
  () => {
    using there = host();
    there.minisign('-G', '-W', '-p', 'key.pub', '-s', 'key');
    const [, key = ''] = readFileSync(there.at('key.pub'), 'utf8').split('\n');
    writeFileSync(there.at('config.yml'), `upgrade: { key: ${key} }\n`);
    const refused = { code: 1, stderr: expect.stringMatching(/Refused to install .*: it is not signed.*minisign -S -m/) };
    expect(there.upgrade('--config', 'config.yml')).toMatchObject(refused);
    expect(there.hasInstalled()).toBe(false);
    there.minisign('-S', '-s', 'key', '-m', name);
    expect(there.upgrade('--config', 'config.yml')).toEqual({ code: 0, stderr: expect.not.stringContaining('was not checked') });
    expect(there.hasInstalled()).toBe(true);
  },
);

test('service upgrade needs a signature where a drop-in of the service names the config with the key', async () => {
  using there = host();
  const key = 'RWTsQuC0HjPu8X1iRf0O6PKScPmoDsZxGzgjgufU1KILRx7Vi02luwwu';
  writeFileSync(there.at('config.yml'), `upgrade: { key: ${key} }\n`);
  const refused = { code: 1, stderr: expect.stringMatching(/Refused to install .*: it is not signed/) };
  const start = '[Service]\nExecStart=/opt/onejob/current/bin/onejob up --on-stop leave';
  there.systemctl(
    'MainPID=0',
    `${start}\n\n# onejob.service.d/override.conf\n[Service]\nExecStart=\n${start} --config ${there.at('config.yml')}`,
  );
  expect(there.upgrade()).toMatchObject(refused);
  there.systemctl(
    'MainPID=0',
    `${start}\n# onejob.service.d/override.conf\n[Service]\nEnvironment=ONEJOB_CONFIG=${there.at('config.yml')}`,
  );
  const unknown = /Cannot know which config the service reads, .*sets Environment\. Nothing was changed\. Name .* --config/;
  expect(there.upgrade()).toMatchObject({ code: 1, stderr: expect.stringMatching(unknown) });
  writeFileSync(there.at('main.js'), 'setInterval(() => {}, 1e6)');
  const running = spawn(process.execPath, [there.at('main.js'), 'up'], { env: { ONEJOB_CONFIG: 'config.yml' }, cwd: there.at() });
  await once(running, 'spawn');
  there.systemctl(`MainPID=${running.pid}`, start);
  expect(there.upgrade()).toMatchObject(refused);
  running.kill();
  await once(running, 'exit');
  expect(there.hasInstalled()).toBe(false);
});
