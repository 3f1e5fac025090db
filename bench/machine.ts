/** The machine in words: enough to judge a figure by, nothing to find the machine by. */
import { availableParallelism, cpus, release, totalmem } from 'node:os';
import { engineAt, machineSocket } from '../test/support/engine-http.ts';

export interface MachineWords {
  readonly cores: number;
  readonly cpu: string;
  /** GiB */
  readonly memory: number;
  /** major.minor */
  readonly kernel: string;
  readonly node: string;
  /** null: none answers. */
  readonly engine: string | null;
}

export async function describeMachine(): Promise<MachineWords> {
  return {
    cores: availableParallelism(),
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    memory: Math.round(totalmem() / 2 ** 30),
    kernel: release().split('.').slice(0, 2).join('.'),
    node: process.versions.node,
    engine: await engineVersion(),
  };
}

async function engineVersion(): Promise<string | null> {
  using engine = engineAt(machineSocket);
  try {
    const { Version } = (await engine.ok('GET', '/version')) as { Version: string };
    return Version.split('+')[0] ?? Version;
  } catch {
    return null;
  }
}
