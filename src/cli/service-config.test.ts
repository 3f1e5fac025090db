import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { readEnvironment } from '../config/environment.ts';
import { sourceOfService } from './service-config.ts';

const env = readEnvironment({ HOME: '/root', ONEJOB_CONFIG: '/of/the/shell.yml' }, 0);
const service = '[Service]\nEnvironment=PATH=/usr/bin:/bin\n';
const unit = `${service}ExecStart=/opt/onejob/current/bin/onejob up --on-stop leave`;
const dropIn = (...lines: string[]) =>
  `${unit}\n\n# /etc/systemd/system/onejob.service.d/override.conf\n[Service]\n${lines.join('\n')}\n`;

describe('the config of a service that does not run', () => {
  const read = (text: string, environment = '') => sourceOfService({ pid: null, unit: text, environment }, env);
  const configOf = (text: string) => read(text).flags.config ?? null;

  test('is that of the last command, and never that of the shell', () => {
    expect([configOf(''), configOf(unit), configOf(`${unit} --config /a.yml`)]).toEqual([null, null, '/a.yml']);
    expect(read(unit).env.config).toBeNull();
    expect(configOf(dropIn('ExecStart=', 'ExecStart=/opt/onejob/current/bin/onejob up --config=/b.yml'))).toBe('/b.yml');
    expect(configOf(dropIn('ExecStart=', 'ExecStart="/opt/one job/bin/onejob" up \\', '  --config /c.yml'))).toBe('/c.yml');
    expect(configOf(`${unit} --config "/50%% of \\"$$x\\".yml" --state-dir /s`)).toBe('/50% of "$x".yml');
  });

  test('does not depend on variables where the command names it, nor on those of another kind', () => {
    expect(configOf(dropIn('Environment=HTTPS_PROXY=http://proxy.example:3128', 'LimitNOFILE=9000'))).toBeNull();
    expect(configOf(`${unit} --config /a.yml\nEnvironmentFile=/etc/default/onejob\n`)).toBe('/a.yml');
  });

  test.each([
    ['Environment=ONEJOB_CONFIG=/secret.yml', 'sets Environment.'],
    ['Environment="A=b" "HOME=/home/ci"', 'sets Environment.'],
    ['PassEnvironment=ONEJOB_CONFIG', 'sets PassEnvironment.'],
    ['EnvironmentFile=-/etc/default/onejob', 'sets EnvironmentFile.'],
    ['User=ci', 'sets User.'],
    ['RootDirectory=/srv/root', 'sets RootDirectory.'],
    ['ExecStart=/usr/local/bin/wrapped-onejob-start', 'starts something else than "onejob up"'],
    ['ExecStart=/bin/sh -c "onejob up"', 'starts something else than "onejob up"'],
  ])('is unknown with the drop-in %s', (line, why) => {
    const refused = { code: 'E_SERVICE', message: expect.stringContaining(why), hint: expect.stringContaining('--config') };
    expect(() => configOf(dropIn(line))).toThrow(expect.objectContaining(refused));
    expect(() => configOf(dropIn(line))).not.toThrow('secret');
  });

  test('is unknown where all services are told where it is', () => {
    expect(() => read(unit, 'LANG=C\nONEJOB_CONFIG=/x.yml\n')).toThrow(/has ONEJOB_CONFIG/);
    expect(read(unit, 'LANG=C\nHOME=/root\n').flags).toEqual({});
    expect(read(`${unit} --config /a.yml`, 'ONEJOB_CONFIG=/x.yml\n').flags).toEqual({ config: '/a.yml' });
  });
});

describe('the config of a service that runs', () => {
  function started(words: readonly string[], variables: readonly string[]) {
    using here = scratch();
    mkdirSync(join(here.path, '7'));
    writeFileSync(join(here.path, '7', 'cmdline'), words.map((one) => `${one}\0`).join(''));
    writeFileSync(join(here.path, '7', 'environ'), variables.map((one) => `${one}\0`).join(''));
    symlinkSync('/srv', join(here.path, '7', 'cwd'));
    return sourceOfService({ pid: 7, unit, environment: '' }, env, here.path);
  }
  const node = ['/opt/onejob/current/node_modules/node/bin/node', '--max-heap-size=256', '/opt/onejob/current/dist/main.js'];

  test('is what its process was started with, whatever the unit says', () => {
    const named = started(
      [...node, 'up', '--on-stop', 'leave', '--config', 'my config.yml'],
      ['ONEJOB_CONFIG=/x=y.yml', 'HOME=/h'],
    );
    expect(named).toMatchObject({
      flags: { config: 'my config.yml' },
      env: { config: '/x=y.yml', configHome: '/h/.config' },
      cwd: '/srv',
    });
    expect(started([...node, 'up'], ['PATH=/bin']).env.config).toBeNull();
  });

  test('is unknown where that is not onejob, or cannot be read', () => {
    expect(() => started(['/bin/sh', '/usr/local/bin/start-onejob', 'up'], [])).toThrow(/its process 7 is not "onejob up"/);
    using here = scratch();
    const gone = () => sourceOfService({ pid: 7, unit, environment: '' }, env, here.path);
    expect(gone).toThrow(/cannot read how its process 7 was started/);
  });
});
