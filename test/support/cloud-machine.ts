/**
 * A machine as clouds make them: real cloud-init and systemd boot the text of src/machines/boot in systemd-nspawn. Packages, the driver
 * and Docker are stand-ins, which log how they were called. What it installs is this clone.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { type Guest, guest } from './guest.ts';

const root = join(import.meta.dirname, '..', '..');

export interface Package extends Disposable {
  readonly path: string;
  readonly sha256: string;
}

/** This clone, as `npm run release` makes an archive of it, but with its TypeScript and without the dashboard: in seconds. */
export function packThisClone(): Package {
  const work = mkdtempSync(join(tmpdir(), 'onejob-package-'));
  const app = join(work, 'onejob');
  mkdirSync(join(app, 'dist'), { recursive: true });
  for (const name of ['bin', 'install.sh', 'package.json', 'deploy'])
    cpSync(join(root, name), join(app, name), { recursive: true });
  // Not as `src`, since a clone cannot be a service. Node strips types everywhere but below `node_modules`.
  cpSync(join(root, 'src'), join(app, 'ts'), { recursive: true, filter: (path) => !path.endsWith('.test.ts') });
  writeFileSync(join(app, 'dist', 'main.js'), "await import('../ts/main.ts');\n");
  writeFileSync(join(app, 'platform'), `linux-${process.arch}\n`);
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, { dev?: boolean; link?: boolean }>;
  };
  // Not the workspaces of this clone, which are links.
  for (const [path, { dev, link }] of Object.entries(lock.packages))
    if (path.startsWith('node_modules/') && dev !== true && link !== true)
      cpSync(join(root, path), join(app, path), { recursive: true });
  mkdirSync(join(app, 'node_modules/node/bin'), { recursive: true });
  cpSync(process.execPath, join(app, 'node_modules/node/bin/node'));
  const path = join(work, 'onejob.tgz');
  execFileSync('tar', ['-C', work, '-I', 'gzip -1', '-cf', path, 'onejob']);
  rmSync(app, { recursive: true });
  const sha256 = createHash('sha256').update(readFileSync(path)).digest('hex');
  return { path, sha256, [Symbol.dispose]: () => rmSync(work, { recursive: true, force: true }) };
}

/** Stand-ins by name. `$log` has their calls. The driver answers once the machine has booted again, as on Azure. */
const standIns: Readonly<Record<string, string>> = {
  'apt-get': `case "$*" in
*pciutils*) printf '#!/bin/sh\\necho "00:1e.0 0302: 10de:27b8"\\n' >/usr/local/sbin/lspci; chmod 755 /usr/local/sbin/lspci ;;
*bubblewrap*) mv /usr/local/stand-ins/bwrap /usr/bin/ ;;
*passt*) mv /usr/local/stand-ins/pasta /usr/bin/ ;;
*docker.io*) mv /usr/local/stand-ins/docker /usr/local/sbin/ ;;
*nvidia-container-toolkit*) mv /usr/local/stand-ins/nvidia-ctk /usr/local/sbin/ ;;
*ubuntu-drivers-common*) mv /usr/local/stand-ins/ubuntu-drivers /usr/local/sbin/ ;;
*iptables*) mv /usr/local/stand-ins/iptables /usr/local/sbin/; cp /usr/local/sbin/iptables /usr/local/sbin/ip6tables ;;
*xserver-xorg-core*) mv /usr/local/stand-ins/Xorg /usr/bin/ ;;
*mesa-utils*) mv /usr/local/stand-ins/glxinfo /usr/local/stand-ins/eglinfo /usr/local/sbin/ ;;
esac`,
  'ubuntu-drivers': 'mv /usr/local/stand-ins/nvidia-smi /usr/local/sbin/',
  'nvidia-smi': `[ "$(cat /var/boots)" -gt 1 ] || exit 9
case "$*" in
*gpu=name*) echo 'NVIDIA L4, 580.95.05, 23034 MiB' ;;
*driver_version*) echo 580.95.05 ;;
*bus_id*) echo 00000000:00:1E.0 ;;
*uuid*) echo GPU-00000000-0000-0000-0000-000000000001 ;;
esac`,
  'nvidia-ctk': '',
  docker: `case "$1" in
run) echo GPU-00000000-0000-0000-0000-000000000001 ;;
version) echo 29.8.0 ;;
esac`,
  // A rule is never there yet.
  iptables: `case "$*" in *' -C '*) exit 1 ;; esac`,
  eglinfo: 'echo EGL vendor string: NVIDIA',
  glxinfo: 'echo OpenGL vendor string: NVIDIA Corporation',
  ldconfig: `case "$*" in -p) echo libEGL_nvidia.so.0 ;; *) exec /sbin/ldconfig "$@" ;; esac`,
  Xorg: 'exec sleep infinity',
  modprobe: '',
  'apt-mark': '',
  // The one program that it downloads with: what is not on this machine comes from nowhere.
  curl: `case "$*" in
*nvidia.github.io*) exit 0 ;;
*) exec /usr/bin/curl "$@" ;;
esac`,
};

const atOnce = ['apt-get', 'modprobe', 'apt-mark', 'curl', 'ldconfig'];

export interface CloudMachine extends Guest {
  /** Calls of stand-ins so far, one a line. */
  calls(): string;
  /** The log of the boot script. */
  log(): string;
}

/** Boots a machine whose user data is `text`. */
export async function cloudMachine(text: string): Promise<CloudMachine> {
  const put =
    (into: string) =>
    (path: string, content: string, mode = 0o644) => {
      mkdirSync(dirname(join(into, path)), { recursive: true });
      writeFileSync(join(into, path), content);
      chmodSync(join(into, path), mode);
    };
  const there = await guest({
    cloud(files) {
      const write = put(files);
      const seed = 'var/lib/cloud/seed/nocloud';
      write(`${seed}/meta-data`, 'instance-id: i-1\nlocal-hostname: machine\n');
      write(`${seed}/user-data`, text, 0o600);
      write('etc/cloud/cloud.cfg.d/99-here.cfg', 'datasource_list: [NoCloud, None]\nnetwork: { config: disabled }\n');
      for (const [name, script] of Object.entries(standIns)) {
        const folder = atOnce.includes(name) ? 'usr/local/sbin' : 'usr/local/stand-ins';
        write(`${folder}/${name}`, `#!/bin/sh\necho "\${0##*/} $*" >>/var/log/stand-ins\n${script}\n`, 0o755);
      }
      // The real programs, which only a package brings.
      for (const name of ['bwrap', 'pasta']) renameSync(join(files, 'usr/bin', name), join(files, 'usr/local/stand-ins', name));
      write(
        'etc/systemd/system/docker.service',
        '[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n',
      );
      write(
        'etc/systemd/system/count.service',
        '[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\n[Service]\nType=oneshot\nExecStart=/bin/sh -c "echo $$(( $$(cat /var/boots 2>/dev/null || echo 0) + 1 )) >/var/boots"\n[Install]\nWantedBy=sysinit.target\n',
      );
      mkdirSync(join(files, 'etc/systemd/system/sysinit.target.wants'), { recursive: true });
      execFileSync('ln', ['-s', '../count.service', join(files, 'etc/systemd/system/sysinit.target.wants/count.service')]);
    },
  });
  const read = (path: string): string => {
    try {
      return readFileSync(join(there.root, path), 'utf8');
    } catch {
      return '';
    }
  };
  return { ...there, calls: () => read('var/log/stand-ins'), log: () => read('var/log/onejob-boot.log') };
}
