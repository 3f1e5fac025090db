/**
 * Docker Engines of today and of a year ago, built from the module proxy: where their own packages are out of reach, that is the only
 * way to have the Engines that people have. Their command line and init are Debian's, and so is Engine 26.
 * Debian's runc is too old: it knows no time namespaces, which Engine 29 gives every container.
 */
import { existsSync } from 'node:fs';
import { cp, mkdir, mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { go, moduleFolder } from '../support/go-program.ts';

/** By their first number. The proxy does not serve the tags of Engine 29.8 (`docker-v29.8.0`) as versions. */
const engines = {
  28: { module: 'github.com/docker/docker@v28.5.2+incompatible', path: 'github.com/docker/docker', version: '28.5.2' },
  29: { module: 'github.com/moby/moby/v2@v2.0.0-beta.24', path: 'github.com/moby/moby/v2', version: '2.0.0-beta.24' },
};
const containerd = 'github.com/containerd/containerd/v2@v2.2.1';
const runc = 'github.com/opencontainers/runc@v1.3.4';

/**
 * Puts them into `folder`, each as the files that take the place of Debian's (`29/usr/sbin/dockerd`): half an hour of processor time.
 * @throws Error with what Go said
 */
export async function buildEngines(folder: string): Promise<void> {
  const newest = join(folder, '29');
  for (const [number, { module, path, version }] of Object.entries(engines)) {
    await using source = await sourceOf(module);
    const programs = ['./cmd/dockerd', './cmd/docker-proxy'];
    await build(source.path, join(folder, number, 'usr/sbin'), `${path}/dockerversion.Version=${version}`, programs);
  }
  const programs = ['./cmd/containerd', './cmd/containerd-shim-runc-v2'];
  const named = 'github.com/containerd/containerd/v2/version.Version=2.2.1';
  await build(await moduleFolder(containerd), join(newest, 'usr/bin'), named, programs);
  // Enters namespaces in C, before Go has threads.
  await build(await moduleFolder(runc), join(newest, 'usr/sbin'), 'main.version=1.3.4', ['.'], { CGO_ENABLED: '1' });
  for (const name of ['usr/bin/containerd', 'usr/bin/containerd-shim-runc-v2', 'usr/sbin/runc'])
    await cp(join(newest, name), join(folder, '28', name));
}

async function build(source: string, folder: string, version: string, programs: readonly string[], env = {}): Promise<void> {
  await mkdir(folder, { recursive: true });
  const tags = 'exclude_graphdriver_btrfs no_btrfs no_devmapper no_zfs no_cri seccomp';
  const flags = ['-mod=mod', '-trimpath', '-tags', tags, '-ldflags', `-s -w -X ${version}`];
  await go(['build', ...flags, '-o', `${folder}/`, ...programs], source, env);
}

/** A copy of a module that may be built: the older Engine lists what it needs in files that Go does not know. */
async function sourceOf(module: string): Promise<{ path: string } & AsyncDisposable> {
  const path = await mkdtemp(join(tmpdir(), 'onejob-engine-'));
  await cp(await moduleFolder(module), path, { recursive: true });
  if (!existsSync(join(path, 'go.mod'))) {
    await rename(join(path, 'vendor.mod'), join(path, 'go.mod'));
    await rename(join(path, 'vendor.sum'), join(path, 'go.sum'));
  }
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}
