/**
 * A Docker Engine of today, built from the module proxy: where its own packages are out of reach, that is the only way to have the
 * Engine that people have. Its command line and init are Debian's.
 * Debian's runc is too old: it knows no time namespaces, which this Engine gives every container.
 */
import { mkdir } from 'node:fs/promises';
import { go, moduleFolder } from '../support/go-program.ts';

/** Engine 29.8. The proxy does not serve the Engine's own tags (`docker-v29.8.0`) as versions. */
const engine = 'github.com/moby/moby/v2@v2.0.0-beta.24';
const containerd = 'github.com/containerd/containerd/v2@v2.2.1';
const runc = 'github.com/opencontainers/runc@v1.3.4';

/** Puts its programs into `folder`: a quarter of an hour of processor time. @throws Error with what Go said */
export async function buildEngine(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const build = async (module: string, name: string, programs: readonly string[], env = {}) => {
    const source = await moduleFolder(module);
    const version = module.slice(module.lastIndexOf('@') + 2);
    const flags = ['-trimpath', '-tags', 'exclude_graphdriver_btrfs no_btrfs no_devmapper no_zfs no_cri seccomp'];
    await go(['build', ...flags, '-ldflags', `-s -w -X ${name}=${version}`, '-o', `${folder}/`, ...programs], source, env);
  };
  const named = 'github.com/moby/moby/v2/dockerversion.Version';
  await build(engine, named, ['./cmd/dockerd', './cmd/docker-proxy']);
  const shim = './cmd/containerd-shim-runc-v2';
  await build(containerd, 'github.com/containerd/containerd/v2/version.Version', ['./cmd/containerd', shim]);
  // Enters namespaces in C, before Go has threads.
  await build(runc, 'main.version', ['.'], { CGO_ENABLED: '1' });
}
