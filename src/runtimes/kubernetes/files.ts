/** Programs next to the first process of an agent's container, and the files that they bring and take. */
import { createReadStream } from 'node:fs';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { messageOf, OnejobError } from '../../base/errors.ts';
import { quoted } from '../../base/quoted.ts';
import type { AgentId } from '../../core/slot.ts';
import type { KubeClient } from './client.ts';
import { takeProgram } from './script.ts';
import { type Running, runAlongside } from './stream.ts';

export class PodFiles {
  readonly #client: KubeClient;

  constructor(client: KubeClient) {
    this.#client = client;
  }

  /** Runs a shell script next to the container's first process, to its end. */
  async run(agent: AgentId, script: string, signal: AbortSignal, input?: Readable): Promise<Awaited<Running['ended']>> {
    const { stdin, stdout, ended } = await this.#begin(agent, script, signal);
    stdout.resume();
    if (input === undefined) stdin.end();
    // One that ends early takes no more, and says why.
    else await pipeline(input, stdin).catch(() => {});
    return ended;
  }

  #begin(agent: AgentId, script: string, signal: AbortSignal): Promise<Running> {
    return runAlongside(this.#client, { agent, script, doing: `run a program next to agent ${agent}` }, signal);
  }

  /** The container waits for it before its gate. One that is there already comes again, whole. */
  bring(agent: AgentId, file: string, path: string, signal: AbortSignal): Promise<void> {
    return this.#send(agent, takeProgram(path), createReadStream(file), `bring ${path} to`, signal);
  }

  put(agent: AgentId, tar: Readable, signal: AbortSignal): Promise<void> {
    return this.#send(agent, 'exec tar -x -o -f -', tar, 'put files into', signal);
  }

  async #send(agent: AgentId, script: string, input: Readable, what: string, signal: AbortSignal): Promise<void> {
    const { code, words } = await this.run(agent, script, signal, input).catch((error: unknown) => {
      signal.throwIfAborted();
      throw filesFailed(agent, what, error);
    });
    signal.throwIfAborted();
    if (code !== 0) throw filesFailed(agent, what, words === '' ? `it ended with exit code ${code}` : words);
  }

  /** A tar of a folder of the workspace, or of the files in it that are listed. */
  async get(agent: AgentId, folder: string, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    const listed = only?.map((name) => quoted(`./${name}`)).join(' ') ?? '.';
    // 1: a file changed while it was read. 2: one could not be read, or is missing. The archive is complete.
    const script = `cd -- ${quoted(`./${folder}`)} && tar -c -f - -- ${listed} 2>/dev/null; [ $? -le 2 ]`;
    const tar = await this.#begin(agent, script, signal);
    tar.stdin.end();
    const failed = (cause: unknown): void => void tar.stdout.destroy(filesFailed(agent, 'read files from', cause));
    tar.ended.then(({ code }) => code === 0 || failed(`tar ended with exit code ${code}`), failed);
    tar.stdout.on('close', tar.stop);
    return tar.stdout;
  }

  async isFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<boolean> {
    const path = quoted(`./${folder}`);
    return (await this.run(agent, `[ -d ${path} ] && [ ! -L ${path} ]`, signal)).code === 0;
  }
}

function filesFailed(agent: AgentId, what: string, cause: unknown): OnejobError {
  const why = (typeof cause === 'string' ? cause : messageOf(cause)).replace(/\.$/, '');
  return new OnejobError('E_FILES', `Cannot ${what} the workspace of agent ${agent}: ${why}.`, { cause, retry: true });
}
