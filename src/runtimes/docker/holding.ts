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
import type { ContainerAnswer } from '../engine/engine.ts';
import { translate } from '../engine/failures.ts';
import { containerName, createBody, labels, workspacePath } from './create.ts';
import { demultiplexed, programOn, terminalOutput } from './exec.ts';
import { noGrant } from './grants.ts';
import { prepareRefusal, type SandboxParts, verifyFolders } from './prepare.ts';

interface HoldingParts extends SandboxParts {
  /** A container that is held: nobody will send it a script. */
  readonly stopped: (id: string) => void;
}

/** How often, and after how many ms, a terminal is given its size again. */
const [resizeTries, betweenResizes] = [10, 100];

/** Images of held containers; the tag is the agent. */
const repository = 'onejob-held';

export class DockerHolding implements Holding {
  readonly #parts: HoldingParts;
  readonly #images = createShared<string>();
  /** Containers of open shells, with the held agent of each. */
  readonly #open = new Map<string, AgentId>();

  constructor(parts: HoldingParts) {
    this.#parts = parts;
  }

  /** Ids of the containers of open shells. */
  shellsIn(agent: AgentId): readonly string[] {
    return [...this.#open].filter(([, of]) => of === agent).map(([id]) => id);
  }

  async hold(agent: AgentId): Promise<boolean> {
    const { engine, containers, stopped } = this.#parts;
    const id = await containers.find(agent);
    if (id === null) return false;
    stopped(id);
    const container = await engine.inspect(id);
    if (container === null) return false;
    if (container.State.Running) await engine.kill(id, 'SIGKILL');
    return true;
  }

  async shell(agent: AgentId, shell: ShellSpec, signal: AbortSignal): Promise<RunningShell> {
    const { containers } = this.#parts;
    const container = await containers.sure(agent, signal);
    const make = (_: unknown, until: AbortSignal) => this.#imageId(agent, container, until);
    const image = await this.#images(agent, make, () => {}, signal);
    const id = await this.#create(image, container, shell, signal);
    containers.note(shell.spec.agent, id);
    this.#open.set(id, agent);
    const end = () => containers.remove(shell.spec.agent).finally(() => this.#open.delete(id));
    try {
      // It may have been aborted while it was created.
      signal.throwIfAborted();
      const socket = await this.#start(id, shell, signal);
      return this.#running(id, socket, shell.terminal, signal, end);
    } catch (error) {
      await end();
      throw error;
    }
  }

  async release(agent: AgentId): Promise<void> {
    const { engine, owner, containers } = this.#parts;
    await engine.removeImage(imageOf(agent));
    await containers.remove(agent);
    // Somebody may have removed the container without its workspace.
    for (const name of await engine.danglingVolumes([`${labels.owner}=${owner}`, `${labels.agent}=${agent}`]))
      await engine.removeVolume(name);
  }

  async sweep(held: Pick<ReadonlySet<AgentId>, 'has'>, signal: AbortSignal): Promise<void> {
    const { engine, owner } = this.#parts;
    const failures: unknown[] = [];
    for (const { Id, Labels } of await engine.images(`${labels.owner}=${owner}`, signal)) {
      const agent = Labels?.[labels.held] ?? '';
      // One that somebody has given another name must not keep the rest.
      if (agent !== '' && !held.has(agent)) await engine.removeImage(Id).catch((error: unknown) => failures.push(error));
    }
    if (failures.length > 0) throw failures[0];
  }

  /**
   * The image of its files, made for its first shell. Its name and labels follow from the agent, which is held by then: an image that
   * the Engine finishes after everyone has gone serves the next shell, or is found by `sweep`.
   */
  async #imageId(agent: AgentId, { Id, Config }: ContainerAnswer, signal: AbortSignal): Promise<string> {
    const { engine, owner } = this.#parts;
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
  }

  async #create(imageId: string, { Mounts }: ContainerAnswer, { spec, command, terminal }: ShellSpec, signal: AbortSignal) {
    const { engine, owner, boot, log, networks } = this.#parts;
    const [network, podman] = await Promise.all([networks.resolve(spec.recipe.network), engine.isPodman(signal)]);
    const body = createBody(spec, { owner, boot, imageId, imagePath: null, network, podman, log, grant: noGrant });
    const volume = Mounts?.find(({ Type, Destination }) => Type === 'volume' && Destination === workspacePath);
    // Into an empty volume the Engine would copy the image's folder, with its owner: the job's user could not write there.
    const noCopy = { NoCopy: true };
    const shell = {
      ...body,
      Entrypoint: ['sh', '-c', ...shellCommand(command, terminal !== null)],
      Env: terminal === null ? body.Env : [...body.Env, `TERM=${terminal.term}`],
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
          ...(volume === undefined ? [] : [{ Type: 'volume', Source: volume.Name, Target: workspacePath, VolumeOptions: noCopy }]),
          ...body.HostConfig.Mounts.slice(1),
        ],
      },
    };
    return engine.create(containerName(spec), shell).catch((error: unknown) => {
      throw prepareRefusal(error, spec, engine.endpoint);
    });
  }

  /** Starts the container of a shell, and lets its program run once its folders are those that were checked. */
  async #start(id: string, { spec }: ShellSpec, signal: AbortSignal): Promise<Socket> {
    const { engine } = this.#parts;
    const path = `/containers/${id}/attach?stream=1&stdin=1&stdout=1&stderr=1`;
    const socket = await engine.upgrade(path, 'attach to a shell', signal).catch((error: unknown) => {
      signal.throwIfAborted();
      throw translate(error, `attach to container ${id.slice(0, 12)}`, engine.endpoint);
    });
    socket.on('error', () => {});
    try {
      await engine.start(id).catch((error: unknown) => {
        throw prepareRefusal(error, spec, engine.endpoint);
      });
      await verifyFolders(engine, spec, id, signal);
    } catch (error) {
      socket.destroy();
      throw error;
    }
    socket.write('\n');
    return socket;
  }

  #running(
    id: string,
    socket: Socket,
    terminal: ShellSpec['terminal'],
    signal: AbortSignal,
    end: () => Promise<void>,
  ): RunningShell {
    const { engine } = this.#parts;
    let latest = 0;
    const resize: RunningShell['resize'] = async (size) => {
      const mine = ++latest;
      // Podman refuses it for a moment after the start.
      for (let tries = 0; terminal !== null && tries < resizeTries && mine === latest && !socket.destroyed; tries += 1) {
        const isDone = engine.resize(id, size).then(
          () => true,
          () => false,
        );
        if (await isDone) return;
        await sleep(engine.clock, betweenResizes, signal);
      }
    };
    const exitCode = async (): Promise<number> => {
      await engine.ended(id, signal);
      const container = await engine.inspect(id, signal);
      if (container !== null) return container.State.ExitCode;
      throw new OnejobError('E_SANDBOX_LOST', 'Somebody has removed the container of the shell.');
    };
    const output = terminal === null ? demultiplexed(socket) : terminalOutput(socket);
    const shell = programOn(socket, signal, { output, resize, exitCode, end });
    if (terminal !== null) resize(terminal);
    return shell;
  }
}

function imageOf(agent: AgentId): string {
  return `${repository}:${agent}`;
}

/** What `sh -c` runs: the command, or the best interactive shell. It waits for a line first, until its folders have been checked. */
function shellCommand(command: readonly string[] | null, hasTerminal: boolean): string[] {
  const [quiet, loud] = hasTerminal ? ['stty -echo 2>/dev/null; ', 'stty echo 2>/dev/null; '] : ['', ''];
  const wait = `${quiet}read -r _ || exit 125; ${loud}`;
  if (command === null) return [`${wait}command -v bash >/dev/null 2>&1 && exec bash; exec sh`];
  return [`${wait}exec "$@"`, 'sh', ...command];
}
