/**
 * Held containers: stopped, with their files and workspace. A shell is another container, of an image of these files, with the same
 * workspace. It shares nothing else with the first: not its devices, its variables or its labels.
 */
import type { Socket } from 'node:net';
import { createShared } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Holding, RunningShell, ShellSpec } from '../../ports/runtime.ts';
import { upgrade } from '../engine/call.ts';
import type { ContainerAnswer, Engine } from '../engine/engine.ts';
import { Refusal, translate } from '../engine/failures.ts';
import type { Containers } from './containers.ts';
import { type CreateContext, containerName, createBody, labels, workspacePath } from './create.ts';
import { noGrant } from './grants.ts';
import type { Networks } from './networks.ts';
import { prepareRefusal, verifyFolders } from './prepare.ts';

interface HoldingParts extends Pick<CreateContext, 'owner' | 'boot' | 'log'> {
  readonly engine: Engine;
  readonly containers: Containers;
  readonly networks: Pick<Networks, 'resolve'>;
  readonly isPodman: (signal: AbortSignal) => Promise<boolean>;
  /** A container that is held: nobody will send it a script. */
  readonly stopped: (id: string) => void;
}

/** How often, and after how many ms, a terminal is given its size again. */
const [resizeTries, betweenResizes] = [10, 100];

/** Images of held containers; the tag is the agent. */
const repository = 'onejob-held';

/** `shellsIn`: ids of the containers of open shells. */
export function createHolding(parts: HoldingParts): Holding & { shellsIn(agent: AgentId): readonly string[] } {
  const { engine, owner, boot, log, containers, networks, isPodman, stopped } = parts;
  const imageOf = (agent: AgentId) => `${repository}:${agent}`;

  const made = createShared<string>();
  /** Containers of open shells, with the held agent of each. */
  const open = new Map<string, AgentId>();

  /**
   * The image of its files, made for its first shell. Its name and labels follow from the agent, which is held by then: an image that
   * the Engine finishes after everyone has gone serves the next shell, or is found by `sweep`.
   */
  const imageId = async (agent: AgentId, { Id, Config }: ContainerAnswer, signal: AbortSignal): Promise<string> => {
    const before = await engine.image(imageOf(agent), signal);
    if (before?.labels[labels.held] === agent) return before.id;
    // Labels of its own image would let it pass for an image that onejob has built.
    const blank = Object.fromEntries(Object.keys(Config.Labels ?? {}).map((name) => [name, '']));
    const marks = { ...blank, [labels.owner]: owner, [labels.held]: agent };
    await engine.commit(Id, { repo: repository, tag: agent, labels: marks }, signal);
    const after = await engine.image(imageOf(agent), signal);
    if (after !== null) return after.id;
    throw new OnejobError('E_SANDBOX_LOST', `Somebody removed the image ${imageOf(agent)} while it was made for a shell.`, {
      hint: 'Start the shell again: the files of the job are still held.',
      retry: true,
    });
  };

  return {
    async hold(agent) {
      const id = await containers.find(agent);
      if (id === null) return false;
      stopped(id);
      const container = await engine.inspect(id);
      if (container === null) return false;
      if (container.State.Running) await engine.kill(id, 'SIGKILL');
      return true;
    },

    async shell(agent, { spec, command, terminal }, signal) {
      const container = await containers.sure(agent, signal);
      const image = await made(
        agent,
        (_, until) => imageId(agent, container, until),
        () => {},
        signal,
      );
      const [network, podman] = await Promise.all([networks.resolve(spec.recipe.network), isPodman(signal)]);
      const body = createBody(spec, { owner, boot, imageId: image, imagePath: null, network, podman, log, grant: noGrant });
      const volume = container.Mounts?.find(({ Type, Destination }) => Type === 'volume' && Destination === workspacePath);
      const env = terminal === null ? [] : [`TERM=${terminal.term}`];
      const id = await engine
        .create(containerName(spec), {
          ...body,
          Entrypoint: ['sh', '-c', ...shellCommand(command, terminal !== null)],
          Env: [...body.Env, ...env],
          Tty: terminal !== null,
          StdinOnce: true,
          AttachStdin: true,
          AttachStdout: true,
          AttachStderr: true,
          HostConfig: {
            ...body.HostConfig,
            // Its output is for its client only.
            ...(!podman && { LogConfig: { Type: 'none' } }),
            Mounts: [
              // Into an empty volume the Engine would copy the image's folder, with its owner: the job's user could not write there.
              ...(volume === undefined
                ? []
                : [{ Type: 'volume', Source: volume.Name, Target: workspacePath, VolumeOptions: { NoCopy: true } }]),
              ...body.HostConfig.Mounts.slice(1),
            ],
          },
        })
        .catch((error: unknown) => {
          throw prepareRefusal(error, spec, engine.endpoint);
        });
      containers.note(spec.agent, id);
      open.set(id, agent);
      const end = () => containers.remove(spec.agent).finally(() => open.delete(id));
      try {
        // It may have been aborted while it was created.
        signal.throwIfAborted();
        const socket = await attach(id, signal);
        // The end of a connection is the end of the output, whatever ended it.
        socket.on('error', () => {});
        await engine.start(id).catch((error: unknown) => {
          socket.destroy();
          throw prepareRefusal(error, spec, engine.endpoint);
        });
        await verifyFolders(engine, spec, id, signal).catch((error: unknown) => {
          socket.destroy();
          throw error;
        });
        socket.write('\n');
        return running(id, socket, terminal, signal, end);
      } catch (error) {
        await end();
        throw error;
      }
    },

    async release(agent) {
      await engine.removeImage(imageOf(agent));
      await containers.remove(agent);
      // Somebody may have removed the container without its workspace.
      for (const name of await engine.danglingVolumes([`${labels.owner}=${owner}`, `${labels.agent}=${agent}`]))
        await engine.removeVolume(name);
    },

    async sweep(held, signal) {
      const failures: unknown[] = [];
      for (const { Id, Labels } of await engine.images(`${labels.owner}=${owner}`, signal)) {
        const agent = Labels?.[labels.held] ?? '';
        // One that somebody has given another name must not keep the rest.
        if (agent !== '' && !held.has(agent)) await engine.removeImage(Id).catch((error: unknown) => failures.push(error));
      }
      if (failures.length > 0) throw failures[0];
    },

    shellsIn: (agent) => [...open].filter(([, of]) => of === agent).map(([id]) => id),
  };

  async function attach(id: string, signal: AbortSignal): Promise<Socket> {
    const doing = `attach to container ${id.slice(0, 12)}`;
    try {
      const path = `/containers/${id}/attach?stream=1&stdin=1&stdout=1&stderr=1`;
      const socket = await upgrade(engine.endpoint, path, signal);
      if (!('status' in socket)) return socket;
      throw new Refusal(socket.status, socket.body);
    } catch (error) {
      signal.throwIfAborted();
      throw translate(error, doing, engine.endpoint);
    }
  }

  function running(
    id: string,
    socket: Socket,
    terminal: ShellSpec['terminal'],
    signal: AbortSignal,
    end: () => Promise<void>,
  ): RunningShell {
    const { promise: read, resolve } = Promise.withResolvers<void>();
    const abort = () => socket.destroy();
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
    if (socket.closed) resolve();
    socket.once('close', resolve);
    let latest = 0;
    const resize: RunningShell['resize'] = async (size) => {
      const mine = ++latest;
      // Podman refuses it for a moment after the start.
      for (let tries = 0; terminal !== null && tries < resizeTries && mine === latest && !socket.destroyed; tries += 1) {
        if (
          await engine.resize(id, size).then(
            () => true,
            () => false,
          )
        )
          return;
        await sleep(engine.clock, betweenResizes, signal);
      }
    };
    if (terminal !== null) resize(terminal);
    const ended = async (): Promise<number> => {
      try {
        await read;
        signal.throwIfAborted();
        await engine.ended(id, signal);
        const container = await engine.inspect(id, signal);
        if (container !== null) return container.State.ExitCode;
        throw new OnejobError('E_SANDBOX_LOST', 'Somebody has removed the container of the shell.');
      } finally {
        signal.removeEventListener('abort', abort);
        await end();
      }
    };
    const over = ended();
    // Not everyone waits for it.
    over.catch(() => {});
    return { stdin: socket, output: terminal === null ? demultiplexed(socket) : plain(socket), resize, ended: over };
  }
}

/** What `sh -c` runs: the command, or the best interactive shell. It waits for a line first, until its folders have been checked. */
function shellCommand(command: readonly string[] | null, hasTerminal: boolean): string[] {
  const [quiet, loud] = hasTerminal ? ['stty -echo 2>/dev/null; ', 'stty echo 2>/dev/null; '] : ['', ''];
  const wait = `${quiet}read -r _ || exit 125; ${loud}`;
  if (command === null) return [`${wait}command -v bash >/dev/null 2>&1 && exec bash; exec sh`];
  return [`${wait}exec "$@"`, 'sh', ...command];
}

async function* plain(socket: Socket): RunningShell['output'] {
  for await (const bytes of untilClosed(socket)) yield { stream: 'stdout', bytes };
}

/** A header of eight bytes (stream, three zeros, big-endian length) before each piece (Engine API, "Attach to a container"). */
export async function* demultiplexed(socket: Socket): RunningShell['output'] {
  let rest: Buffer = Buffer.alloc(0);
  let left = 0;
  let stream: 'stdout' | 'stderr' = 'stdout';
  for await (const chunk of untilClosed(socket)) {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    for (;;) {
      if (left > 0 && rest.length > 0) {
        const bytes = rest.subarray(0, left);
        rest = rest.subarray(bytes.length);
        left -= bytes.length;
        yield { stream, bytes };
      } else if (left === 0 && rest.length >= 8) {
        stream = rest[0] === 2 ? 'stderr' : 'stdout';
        left = rest.readUInt32BE(4);
        rest = rest.subarray(8);
      } else break;
    }
  }
}

async function* untilClosed(socket: Socket): AsyncGenerator<Buffer> {
  try {
    for await (const bytes of socket) yield bytes as Buffer;
  } catch {
    // Ended says how it ended.
  }
}
