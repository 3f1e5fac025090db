/** The same contract behind Podman's Docker-compatible socket, with a service of the test's own. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { describe } from 'vitest';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { type ContractSubject, runtimeContract } from '../kit/runtime-contract/contract.ts';
import { engineAt } from '../support/engine-http.ts';
import { ensureImages } from '../support/images.ts';
import { lacks } from '../support/require.ts';

/** What Podman 4.3 cannot keep, and why. What differs beside it stands in docs/runtimes/docker.md. */
const exceptions: ContractSubject['exceptions'] = {
  frame: "it ends a gate's input with the first connection that wrote to it: after a torn frame another standby takes the script",
};

async function startPodman(): Promise<{ socket: string; stop: () => Promise<void> }> {
  const dir = await mkdtemp(join(tmpdir(), 'ojpm-'));
  const socket = join(dir, 'p.sock');
  const config = join(dir, 'containers.conf');
  await writeFile(config, '[containers]\ndefault_ulimits=["nofile=20000:20000","nproc=30000:30000"]\n[engine]\nruntime="runc"\n');
  const env = { ...process.env, CONTAINERS_CONF: config };
  const places = ['--root', join(dir, 'root'), '--runroot', join(dir, 'run'), '--tmpdir', join(dir, 'tmp')];
  const service: ChildProcess = spawn('podman', [...places, 'system', 'service', '--time=0', `unix://${socket}`], {
    env,
    stdio: 'ignore',
  });
  using api = engineAt(socket);
  for (let tries = 0; (await api.call('GET', '/_ping').catch(() => null))?.status !== 200; tries += 1) {
    if (service.exitCode !== null || tries > 1_000) throw new Error('podman did not start');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    socket,
    stop: async () => {
      const gone = once(service, 'exit');
      service.kill('SIGTERM');
      await gone;
      spawnSync('podman', [...places, 'rm', '-af', '-t', '0'], { env });
      spawnSync('podman', [...places, 'unshare', 'true'], { env });
      spawnSync('sh', ['-c', `awk -v d=${dir}/ 'index($2, d) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount -l`]);
      await rm(dir, { recursive: true, force: true });
    },
  };
}

/** From Docker: Podman does not name what is imported through this socket. */
async function load(socket: string, image: string): Promise<void> {
  using from = engineAt();
  using to = engineAt(socket);
  const answer = await to.stream('POST', '/images/load?quiet=1', await from.stream('GET', `/images/${image}/get`));
  const said = await text(answer);
  if (answer.statusCode !== 200) throw new Error(`podman did not load ${image}: ${said}`);
}

describe.skipIf(lacks('docker', 'podman', 'root', 'busybox'))('Podman', () => {
  runtimeContract('podman, no network', async () => {
    const podman = await startPodman();
    await load(podman.socket, (await ensureImages()).base);
    const { make, leftovers } = anOwner(podman.socket);
    const runtime = await make();
    const ulimits = ['nofile', 'nproc'].map((name) => ({ name, soft: 20_000, hard: 20_000 }));
    return {
      runtime,
      recipe: { ...recipe, ulimits },
      remake: make,
      stranger: () => anOwner(podman.socket).make(),
      leftovers,
      cleanup: async () => {
        runtime.close();
        await podman.stop();
      },
      exceptions,
    };
  });
});
