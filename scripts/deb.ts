/**
 * Packs the folder of a release as a package for Debian and Ubuntu:
 *
 *     node scripts/deb.ts RELEASE_FOLDER OUT_FOLDER
 *
 * The package only carries the release. Its scripts run the release's own installer, so that versions are kept side by side, and upgraded
 * and rolled back as everywhere. `SOURCE_DATE_EPOCH` gives all files their time: the same release gives the same package.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';

/** Where the package has the release. */
const home = '/usr/lib/onejob';
const installer = `${home}/install.sh --linked --bin /usr/bin --share /usr/share`;
const unit = '/etc/systemd/system/onejob.service';

// Scripts name the program by its path: "onejob" may be another one for root, or none.

/** An upgrade that does not start goes back to the version before, and dpkg says that the package is not configured. */
const afterInstall = `#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
if [ -e ${unit} ] && [ -d /run/systemd/system ]; then
  before=$(readlink /opt/onejob/current || true)
  ${installer} >/dev/null
  /opt/onejob/current/bin/onejob service upgrade || {
    "/opt/onejob/$before/bin/onejob" service rollback
    exit 1
  }
else
  ${installer}
fi
`;

const beforeRemoval = `#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
if [ -e ${unit} ] && [ -d /run/systemd/system ]; then
  # The version that runs: that of the package may be one that does not start.
  for program in /opt/onejob/current/bin/onejob ${home}/bin/onejob; do [ ! -x "$program" ] || break; done
  "$program" service uninstall
fi
`;

/** State and config stay: only they know which machines are still in a cloud. */
const afterRemoval = `#!/bin/sh
set -e
case $1 in
  remove)
    for link in bin/onejob share/man/man1/onejob.1 share/bash-completion/completions/onejob \\
      share/zsh/site-functions/_onejob share/fish/vendor_completions.d/onejob.fish; do
      case $(readlink "/usr/$link" || true) in /opt/onejob/*) rm -f "/usr/$link" ;; esac
    done
    rm -rf /opt/onejob
    ;;
  purge) echo 'Kept: /etc/onejob, and the state in /var/lib/onejob.' ;;
esac
`;

export const scripts = { postinst: afterInstall, prerm: beforeRemoval, postrm: afterRemoval };

function control(version: string, arch: string, size: number): string {
  return `Package: onejob
Version: ${version}
Architecture: ${arch}
Maintainer: onejob <onejob@localhost>
Installed-Size: ${size}
Depends: libc6 (>= 2.28), libstdc++6, passwd, util-linux
Recommends: docker.io | docker-ce | podman, bubblewrap, passt
Section: devel
Priority: optional
Description: fresh, single-use CI agents on people's own GPU machines
 Keeps agents of Azure Pipelines, Buildkite, GitHub, GitLab or Gitea ready, each in a
 fresh sandbox with exactly the GPU that it needs. Each takes one job, and is removed.
`;
}

/** Path of the package that it makes in folder `out`. @throws Error if dpkg-deb fails or is missing */
export function makeDeb(release: string, out: string, time: string): string {
  const { version } = JSON.parse(readFileSync(join(release, 'package.json'), 'utf8')) as { version: string };
  const [, processor = ''] = /^linux-(\w+)/.exec(readFileSync(join(release, 'platform'), 'utf8')) ?? [];
  const arch = processor === 'x64' ? 'amd64' : processor;
  const work = mkdtempSync(join(tmpdir(), 'onejob-deb-'));
  try {
    cpSync(release, join(work, home), { recursive: true });
    const kibibytes = Number(execFileSync('du', ['-sk', '--apparent-size', work], { encoding: 'utf8' }).split('\t')[0]);
    const about = join(work, 'DEBIAN');
    mkdirSync(about);
    writeFileSync(join(about, 'control'), control(version.replace('-', '~'), arch, kibibytes));
    for (const [name, text] of Object.entries(scripts)) writeFileSync(join(about, name), text, { mode: 0o755 });
    execFileSync('chmod', ['-R', 'u+rwX,go+rX,go-w', work]);
    chmodSync(work, 0o755);
    const path = join(out, `onejob_${version.replace('-', '~')}_${arch}.deb`);
    execFileSync('dpkg-deb', ['--root-owner-group', '-Zxz', '-z1', '--build', work, path], {
      stdio: ['ignore', 'ignore', 'inherit'],
      env: { ...process.env, SOURCE_DATE_EPOCH: time, DPKG_DEB_THREADS_MAX: '1' },
    });
    return path;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

if (import.meta.main) {
  const [, , release = '', out = '.'] = process.argv;
  console.log(basename(makeDeb(release, out, process.env.SOURCE_DATE_EPOCH ?? '0')));
}
