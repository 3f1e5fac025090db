/**
 * How fast a container's log is read, against `docker logs -f` of the same log: a million lines of a container that has ended, in turn.
 * One reading by the Engine's files, one by its API.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { start } from '../src/ports/runtime.ts';
import { logFolder } from '../src/runtimes/docker/log-files.ts';
import { followLogs } from '../src/runtimes/docker/logs.ts';
import { Engine } from '../src/runtimes/engine/engine.ts';
import { inTurn, type Ratio } from './stats.ts';

export interface LogFigures {
  readonly files: Ratio;
  readonly api: Ratio;
  /** Bytes that memory grew by at most, while reading. */
  readonly grown: number;
}

export async function logFigures({
  lines,
  pairs,
  image,
}: {
  readonly lines: number;
  readonly pairs: number;
  readonly image: string;
}): Promise<LogFigures> {
  const docker = (...args: string[]): string => execFileSync('docker', args, { encoding: 'utf8' }).trim();
  const options = ['--log-driver', 'local', '--log-opt', 'max-size=1g', '--log-opt', 'compress=false'];
  const id = docker('run', '-d', ...options, image, 'sh', '-c', `seq 1 ${lines}`);
  const engine = new Engine({ kind: 'unix', path: '/var/run/docker.sock', from: 'bench' });
  try {
    docker('wait', id);
    const { DockerRootDir } = await engine.info();
    const before = process.memoryUsage().rss;
    let grown = 0;
    const floor = async (): Promise<number> => {
      const since = performance.now();
      await once(spawn('docker', ['logs', '-f', id], { stdio: 'ignore' }), 'exit');
      return performance.now() - since;
    };
    const read = (folder: string | null) => async (): Promise<number> => {
      const since = performance.now();
      let bytes = 0;
      const source = { find: async () => id, folder: async () => folder };
      for await (const chunks of followLogs(engine, source, start, new AbortController().signal)) {
        for (const chunk of chunks) bytes += chunk.bytes.length;
        grown = Math.max(grown, process.memoryUsage().rss - before);
      }
      const whole = Array.from({ length: lines }, (_, i) => String(i + 1).length + 1).reduce((sum, each) => sum + each, 0);
      if (bytes !== whole) throw new Error(`${bytes} bytes were read of ${whole}`);
      return performance.now() - since;
    };
    const files = await inTurn(pairs, floor, read(logFolder(DockerRootDir, id)));
    return { files, api: await inTurn(pairs, floor, read(null)), grown };
  } finally {
    engine.close();
    docker('rm', id);
  }
}
