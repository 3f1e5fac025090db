/**
 * Makes the image of onejob itself, for a cluster: an archive as `docker save` writes it, for this machine's processor. It needs neither
 * an Engine nor a registry. In it: a release with its Node, openssl of this machine, the libraries that both load, and busybox as the shell.
 * The same release and the same machine give the same bytes.
 *
 *     npm run image:manager [-- --name IMAGE] [--out FILE] [--release ARCHIVE]
 *
 * `--name`: without its tag, which is the version. Without `--release`, it makes a release of the commit that is checked out.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';

const root = join(import.meta.dirname, '..');
// The image's folders are for everybody, whatever those of this user are.
process.umask(0o022);
const { values } = parseArgs({
  options: {
    name: { type: 'string', default: 'onejob' },
    out: { type: 'string' },
    release: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log('npm run image:manager [-- --name IMAGE] [--out FILE] [--release ARCHIVE]');
  process.exit(0);
}
const programOf = (name: string): string | undefined => [`/bin/${name}`, `/usr/bin/${name}`].find((path) => existsSync(path));
const [busybox, openssl] = [programOf('busybox'), programOf('openssl')];
if (busybox === undefined || openssl === undefined) {
  console.error('Cannot make the image: it needs busybox and openssl. Type "apt-get install busybox-static openssl".');
  process.exit(2);
}

const plain = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner'];
/** Whom the image runs as: a number, since Kubernetes cannot tell from a name that it is not root. */
const user = 65_532;
const run = (command: string, ...args: readonly string[]): string =>
  execFileSync(command, args, { encoding: 'utf8', maxBuffer: 2 ** 28, stdio: ['ignore', 'pipe', 'inherit'] });
const sha256 = (file: string): string => createHash('sha256').update(readFileSync(file)).digest('hex');
const work = mkdtempSync(join(tmpdir(), 'onejob-image-'));

/** Shell, libraries, users. */
function writeBase(folder: string, shell: string, openssl: string, node: string): void {
  for (const name of ['bin', 'etc/onejob', 'proc', 'sys', 'dev', 'usr/local/bin', 'var/lib/onejob'])
    mkdirSync(join(folder, name), { recursive: true });
  mkdirSync(join(folder, 'tmp'));
  chmodSync(join(folder, 'tmp'), 0o1777);
  copyFileSync(shell, join(folder, 'bin/busybox'));
  for (const name of run(shell, '--list').split('\n'))
    if (name !== '' && name !== 'busybox') symlinkSync('busybox', join(folder, 'bin', name));
  // It makes the certificates at which agents call onejob.
  const tls = join(folder, 'usr/local/bin/openssl');
  copyFileSync(openssl, tls);
  const linked = [...run('ldd', node, tls).matchAll(/(\/\S+) \(0x/g)].map(([, path = '']) => path);
  // glibc loads these by itself to look up names; newer ones have them built in.
  const libc = dirname(linked.find((path) => path.endsWith('/libc.so.6')) ?? '/');
  const late = ['libnss_dns.so.2', 'libnss_files.so.2', 'libresolv.so.2'].map((name) => join(libc, name)).filter(existsSync);
  for (const path of [...linked, ...late]) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    copyFileSync(path, join(folder, path));
  }
  writeFileSync(join(folder, 'etc/passwd'), `root:x:0:0:root:/:/bin/sh\nonejob:x:${user}:${user}:onejob:/tmp:/bin/sh\n`);
  writeFileSync(join(folder, 'etc/group'), `root:x:0:\nonejob:x:${user}:\n`);
  symlinkSync('/opt/onejob/bin/onejob', join(folder, 'usr/local/bin/onejob'));
  symlinkSync('/opt/onejob/node_modules/node/bin/node', join(folder, 'usr/local/bin/node'));
}

/** A layer with all of a folder; its name in the archive. */
function writeLayer(name: string): string {
  const file = `${name}.tar`;
  // Everybody may read all of it, and write only to /tmp.
  const modes = name === 'base' ? [] : ['--mode=u+rwX,go+rX,go-w'];
  run('tar', '-C', join(work, name), ...plain, ...modes, '-cf', join(work, 'image', file), '.');
  return file;
}

try {
  if (values.release === undefined) {
    console.log('Making a release');
    run(process.execPath, join(root, 'scripts/release.ts'), '--out', join(work, 'release'), '--arch', process.arch);
  }
  const archive = values.release ?? run('sh', '-c', 'echo "$0"/*.tar.gz', join(work, 'release')).trim();
  for (const name of ['base', 'node/opt/onejob/node_modules', 'app/opt/onejob', 'image'])
    mkdirSync(join(work, name), { recursive: true });
  const app = join(work, 'app/opt/onejob');
  run('tar', '-xf', resolve(archive), '-C', app, '--strip-components=1', '--no-same-owner');
  // In a layer of its own, which an upgrade of onejob mostly leaves as it is.
  renameSync(join(app, 'node_modules/node'), join(work, 'node/opt/onejob/node_modules/node'));
  writeBase(join(work, 'base'), busybox, openssl, join(work, 'node/opt/onejob/node_modules/node/bin/node'));
  const layers = ['base', 'node', 'app'].map(writeLayer);
  const { version } = JSON.parse(readFileSync(join(app, 'package.json'), 'utf8')) as { version: string };
  const config = {
    architecture: process.arch === 'x64' ? 'amd64' : process.arch,
    os: 'linux',
    config: {
      User: `${user}:${user}`,
      Env: ['PATH=/usr/local/bin:/bin', 'HOME=/tmp', 'NODE_COMPILE_CACHE=/tmp/.onejob'],
      WorkingDir: '/tmp',
      Entrypoint: ['/usr/local/bin/onejob'],
      // As the unit of a host: a new daemon takes over what runs.
      Cmd: ['up', '--on-stop', 'leave'],
      Labels: { 'org.opencontainers.image.title': 'onejob', 'org.opencontainers.image.version': version },
    },
    rootfs: { type: 'layers', diff_ids: layers.map((file) => `sha256:${sha256(join(work, 'image', file))}`) },
    history: layers.map((file) => ({ created_by: `onejob: ${file}` })),
  };
  writeFileSync(join(work, 'image/config.json'), JSON.stringify(config));
  const name = `${values.name}:${version}`;
  const manifest = [{ Config: 'config.json', RepoTags: [name], Layers: layers }];
  writeFileSync(join(work, 'image/manifest.json'), JSON.stringify(manifest));
  const out = resolve(values.out ?? `release/onejob-${version}-image-${process.arch}.tar`);
  mkdirSync(dirname(out), { recursive: true });
  run('tar', '-C', join(work, 'image'), ...plain, '-cf', out, 'manifest.json', 'config.json', ...layers);
  console.log(`Made ${name} in ${out}. Type "docker load --input ${out}", or what your nodes have instead.`);
} finally {
  rmSync(work, { recursive: true, force: true });
}
