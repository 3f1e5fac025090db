/** The text as cloud-init reads it. What its commands do is in test/long/cloud-boot.test.ts. */
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { newSecret } from '../join/protocol.ts';
import { type BootParts, bootScript, cloudInit, openGlWays } from './cloud-init.ts';

const run = 'onejob-0123456789abcdef';
const token = newSecret();

const parts = (more: Partial<BootParts> = {}): BootParts => ({
  run,
  url: 'https://ci.example.org:7718',
  token,
  cloud: 'gcp',
  guestEnds: false,
  away: 3600,
  ca: null,
  has: 'nothing',
  gpu: true,
  sandbox: true,
  lifetime: 21_600,
  opengl: 'none',
  package: { url: `https://ci.example.org:7718/cloud/onejob.tgz?run=${run}`, sha256: 'a'.repeat(64) },
  ...more,
});

interface Config {
  readonly write_files: readonly { readonly path: string; readonly permissions: string; readonly content: string }[];
  readonly runcmd: readonly (readonly string[])[];
}

function read(more: Partial<BootParts> = {}) {
  const text = cloudInit(parts(more));
  const config = parse(text) as Config;
  const file = (path: string) => config.write_files.find((one) => one.path.endsWith(path));
  return { text, config, file, paths: config.write_files.map(({ path }) => path) };
}

/** About as long as a certificate with a key of RSA 4096. */
const ca = `-----BEGIN CERTIFICATE-----\n${`${'A'.repeat(64)}\n`.repeat(30)}-----END CERTIFICATE-----\n`;

describe('the text for cloud-init', () => {
  it('is one, and has the script as it is but for its comments', () => {
    const { text, file } = read();
    expect(text).toMatch(/^#cloud-config\n/);
    expect(file('boot.sh')?.content).toBe(bootScript());
    expect(bootScript()).toMatch(/^#!\/bin\/sh\nset -eu\n/);
  });

  it('with everything, a large certificate and a page of commands fits what AWS takes', () => {
    for (const opengl of openGlWays) {
      const setup = `${'#'.repeat(79)}\n`.repeat(10);
      const text = cloudInit(parts({ cloud: 'aws', guestEnds: true, ca, opengl, setup }));
      // The adapter packs it.
      expect(gzipSync(text).length).toBeLessThan(12 * 1024);
    }
  });

  it('has the token in files that only root reads, and nowhere else', () => {
    const { config, text } = read({ cloud: 'aws', guestEnds: true, ca, opengl: 'glx', setup: 'true' });
    const secret = config.write_files.filter(({ content }) => content.includes(token));
    expect(secret.map(({ path, permissions }) => `${permissions} ${path}`)).toEqual([
      '0600 /etc/onejob-cloud/machine.json',
      '0600 /etc/onejob-cloud/auth',
    ]);
    expect(text.split(token)).toHaveLength(3);
    expect(JSON.stringify(config.runcmd)).not.toContain(token);
  });

  it('without an address has nothing to call with, and its token only where the machine proves the mail', () => {
    const text = cloudInit(parts({ url: null }));
    const files = (parse(text) as { write_files: { path: string; content: string }[] }).write_files;
    const of = (name: string) => files.find(({ path }) => path === `/etc/onejob-cloud/${name}`)?.content;
    expect(of('auth')).toBeUndefined();
    expect(of('settings')).toContain("url=''\n");
    expect(JSON.parse(of('machine.json') ?? '')).toMatchObject({ url: null, token: expect.any(String) });
  });

  it('ends the machine from inside only where that ends it for good', () => {
    for (const guestEnds of [true, false]) {
      const { file, config } = read({ guestEnds, cloud: guestEnds ? 'aws' : 'gcp' });
      expect(file('onejob-end.timer')?.content.includes('OnBootSec=21600')).toBe(guestEnds ? true : undefined);
      expect(JSON.stringify(config.runcmd).includes('onejob-end.timer')).toBe(guestEnds);
      expect(file('settings')?.content).toContain(`ends='${guestEnds ? 'yes' : 'no'}'`);
      expect(JSON.parse(file('machine.json')?.content ?? '')).toMatchObject({ guestEnds });
    }
  });

  it('has an X server only with GLX, and a certificate only where it is not a public one', () => {
    expect(read({ opengl: 'egl' }).paths).not.toContain('/etc/systemd/system/onejob-x.service');
    expect(read({ opengl: 'glx' }).paths).toContain('/etc/systemd/system/onejob-x.service');
    expect(read().file('settings')?.content).toContain("ca=''");
    expect(read({ ca }).file('ca.pem')?.content).toBe(ca);
    expect(read({ ca }).file('attend.service')?.content).toContain('NODE_EXTRA_CA_CERTS=/etc/onejob-cloud/ca.pem');
  });

  it('keeps what the user wrote as it is', () => {
    const setup = `#!/bin/sh\necho "it's" \\\n  'a: b' # {{ x }}\n\n\ttab\n`;
    expect(read({ setup }).file('extra.sh')?.content).toBe(setup);
    expect(read({ setup: 'true' }).file('extra.sh')?.content).toBe('true\n');
    expect(read({ setup: ' \n' }).file('extra.sh')).toBeUndefined();
    expect(read({ probe: "x'; reboot; '" }).file('settings')?.content).toContain(`probe='x'\\''; reboot; '\\'''\n`);
  });

  it.each<[string, Partial<BootParts>]>([
    ['an address without TLS', { url: 'http://ci.example.org' }],
    ['an address with a password', { url: 'https://me:pass@ci.example.org' }],
    ['an address with a space', { url: 'https://ci.example.org/ x' }],
    ['another kind of run', { run: 'x; reboot' }],
    ['a short token', { token: 'abc' }],
    ['a package without TLS', { package: { url: 'http://example.org/onejob.tgz', sha256: 'a'.repeat(64) } }],
    ['a package without a checksum', { package: { url: 'https://example.org/onejob.tgz', sha256: '' } }],
    ['no lifetime', { lifetime: 0 }],
  ])('is not made with %s', (_, more) => {
    expect(() => cloudInit(parts(more))).toThrow(RangeError);
  });
});
