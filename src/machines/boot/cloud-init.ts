/**
 * The text that cloud-init gets on a new machine: it makes the machine a host of onejob (boot.sh) and contains no secret but the join
 * token, which is good for one exchange. Everybody who may read the machine's user data at the cloud can read it.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { attempt } from '../../base/errors.ts';
import type { ImageContents } from '../../ports/cloud.ts';
import { addressProblem, type MachineFile, runName, secretText } from '../join/protocol.ts';

export const openGlWays = ['none', 'egl', 'glx'] as const;
export type OpenGl = (typeof openGlWays)[number];

export interface BootParts extends Omit<MachineFile, 'guestEnds'> {
  /** PEM of the controller's certificate authority, or of its certificate if that is self-signed; null: a public authority. */
  readonly ca: string | null;
  readonly has: ImageContents;
  /** Whether it has NVIDIA GPUs. Without, no driver and toolkit are installed or expected. */
  readonly gpu: boolean;
  /** Whether pools of it are on the process runtime, which needs bubblewrap and pasta. */
  readonly sandbox: boolean;
  /** Whether a shutdown inside the machine ends it for good, see `CloudCapabilities`. Only then does it end itself. */
  readonly guestEnds: boolean;
  /** s from boot until it ends itself; before the time at which the cloud ends it. */
  readonly lifetime: number;
  /** A release archive (`npm run release`), which has its own Node. An address below `url` is asked for with the token. */
  readonly package: { readonly url: string; readonly sha256: string };
  readonly opengl: OpenGl;
  /** Branch of Canonical's signed driver, for images with nothing. */
  readonly driver?: string;
  /** The image in which the GPUs are looked for; it needs only a C library. */
  readonly probe?: string;
  /** Commands of the user for `sh -eu`, as root, before the join; empty: none. */
  readonly setup?: string;
}

/** `facts`: the cautious branch of late 2026, in Ubuntu 22.04 and later. */
const usualDriver = '580-server';
const usualProbe = 'ubuntu:24.04';

/** Folder of what the machine boots with. */
const here = '/etc/onejob-cloud';

/** Where and how the script is told what it needs; also for tests. */
export function bootScript(): string {
  return readFileSync(join(import.meta.dirname, 'boot.sh'), 'utf8')
    .split('\n')
    .filter((line, at) => at === 0 || !/^\s*# /.test(line))
    .join('\n');
}

/** @throws RangeError if a value could not be written into the text as it is */
export function cloudInit(parts: BootParts): string {
  const { run, url, token, cloud, ca, guestEnds, lifetime, away, setup = '' } = parts;
  check('run', run, runName.safeParse(run).success);
  check('token', 'a secret', secretText.safeParse(token).success);
  check('url', url ?? '', url === null || (addressProblem(url) === null && /^[\x21-\x7e]+$/.test(url)));
  check(
    'package',
    parts.package.url,
    addressProblem(parts.package.url.replace(/\?.*$/, '')) === null && /^[\x21-\x7e]+$/.test(parts.package.url),
  );
  check('sha256', parts.package.sha256, /^[0-9a-f]{64}$/.test(parts.package.sha256));
  check('lifetime', String(lifetime), Number.isInteger(lifetime) && lifetime > 0);
  const settings = {
    run,
    url: url?.replace(/\/+$/, '') ?? '',
    cloud,
    gpu: parts.gpu ? 'yes' : 'no',
    has: parts.has,
    sandbox: parts.sandbox ? 'yes' : 'no',
    opengl: parts.opengl,
    driver: parts.driver ?? usualDriver,
    probe: parts.probe ?? usualProbe,
    package: parts.package.url,
    sum: parts.package.sha256,
    ca: ca === null ? '' : `${here}/ca.pem`,
    ends: guestEnds ? 'yes' : 'no',
  };
  const machine: MachineFile = { run, url: url === null ? null : settings.url, token, cloud, guestEnds, away };
  const file = (path: string, content: string, permissions = '0600') => ({ path, permissions, content });
  const units = {
    'onejob-boot.service': bootUnit,
    'onejob-attend.service': attendUnit(ca === null ? null : settings.ca),
    ...(parts.opengl === 'glx' && { 'onejob-x.service': xUnit }),
    ...(guestEnds && { 'onejob-end.service': endUnit, 'onejob-end.timer': endTimer(lifetime) }),
  };
  const timers = guestEnds ? [['systemctl', 'enable', '--now', 'onejob-end.timer']] : [];
  return `#cloud-config\n${stringify(
    {
      package_update: false,
      package_upgrade: false,
      ssh_pwauth: false,
      write_files: [
        file(`${here}/boot.sh`, bootScript()),
        file(`${here}/settings`, lines(Object.entries(settings).map(([name, value]) => `${name}=${quoted(value)}`))),
        file(`${here}/machine.json`, `${JSON.stringify(machine)}\n`),
        ...(url === null ? [] : [file(`${here}/auth`, `authorization: Bearer ${token}\n`)]),
        ...(ca === null ? [] : [file(`${here}/ca.pem`, ca, '0644')]),
        ...(setup.trim() === '' ? [] : [file(`${here}/extra.sh`, setup.endsWith('\n') ? setup : `${setup}\n`)]),
        ...Object.entries(units).map(([name, text]) => file(`/etc/systemd/system/${name}`, text, '0644')),
      ],
      runcmd: [
        ['systemctl', 'daemon-reload'],
        ...timers,
        // Not waited for: cloud-init is a part of the boot that the script may end with a reboot.
        ['systemctl', 'enable', 'onejob-boot.service'],
        ['systemctl', 'start', '--no-block', 'onejob-boot.service'],
      ],
    },
    { lineWidth: 0, blockQuote: 'literal' },
  )}`;
}

const bootUnit = `[Unit]
Description=Make this machine a host of onejob
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/bin/sh ${here}/boot.sh
[Install]
WantedBy=multi-user.target
`;

const attendUnit = (ca: string | null) => `[Unit]
Description=Does what the controller of this machine asks
Wants=network-online.target
After=network-online.target onejob.service docker.service
ConditionPathExists=/run/onejob-cloud/credential
StartLimitIntervalSec=0
[Service]
${ca === null ? '' : `Environment=NODE_EXTRA_CA_CERTS=${ca}\n`}ExecStart=/usr/local/bin/onejob cloud attend --file ${here}/machine.json --config /run/onejob-cloud/config.yml
Restart=on-failure
RestartSec=5
TimeoutStopSec=30
`;

/** Without access control, since only jobs of this machine reach it. */
const xUnit = `[Unit]
Description=X server on the GPU, for jobs with GLX
[Service]
ExecStart=/usr/bin/Xorg :0 -ac -noreset -nolisten tcp -config ${here}/xorg.conf
Restart=always
RestartSec=2
[Install]
WantedBy=multi-user.target
`;

const endUnit = `[Unit]
Description=End of this machine's life
[Service]
Type=oneshot
ExecStart=/usr/bin/systemctl poweroff
`;

const endTimer = (lifetime: number) => `[Unit]
Description=End of this machine's life
[Timer]
OnBootSec=${lifetime}
AccuracySec=1
[Install]
WantedBy=timers.target
`;

/** As a word of sh. */
function quoted(value: string): string {
  return `'${value.replaceAll("'", `'\\''`)}'`;
}

function lines(all: readonly string[]): string {
  return all.map((line) => `${line}\n`).join('');
}

function check(what: string, value: string, isFine: boolean): void {
  if (!isFine) throw new RangeError(`${what} of a new machine is not usable: ${attempt(() => JSON.stringify(value)) ?? value}`);
}
