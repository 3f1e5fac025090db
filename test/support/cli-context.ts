/** A command line inside the test's own process, for what happens between a command and its daemon. */
import { PassThrough } from 'node:stream';
import type { CliContext } from '../../src/cli/context.ts';
import { readEnvironment } from '../../src/config/environment.ts';

export interface TestContext {
  readonly context: CliContext;
  stdout(): string;
  stderr(): string;
  /** Resolves once standard output and error together match. */
  says(pattern: RegExp): Promise<void>;
  signal(): void;
  /** What the command reads from its terminal; a pipe until somebody types. */
  type(text: string): void;
}

export function testContext(args: readonly string[], dir: string, more: Partial<CliContext> = {}): TestContext {
  const stdin = new PassThrough();
  const text = { stdout: '', stderr: '' };
  const listeners = new Set<() => void>();
  const handlers = new Set<(signal: 'SIGINT') => void>();
  const stream = (name: 'stdout' | 'stderr') => {
    const pipe = new PassThrough();
    pipe.on('data', (bytes: Buffer) => {
      text[name] += bytes.toString();
      for (const listener of listeners) listener();
    });
    return pipe;
  };
  return {
    stdout: () => text.stdout,
    stderr: () => text.stderr,
    says: (pattern) =>
      new Promise((resolve) => {
        const look = () => {
          if (!pattern.test(text.stdout + text.stderr)) return;
          listeners.delete(look);
          resolve();
        };
        listeners.add(look);
        look();
      }),
    signal: () => {
      for (const handler of handlers) handler('SIGINT');
    },
    type: (typed) => {
      stdin.write(typed);
    },
    context: {
      args,
      stdin: () => stdin,
      isGiven: () => true,
      variables: {},
      environment: readEnvironment({ HOME: dir, ONEJOB_STATE_DIR: dir }),
      cwd: dir,
      stdout: stream('stdout'),
      stderr: stream('stderr'),
      self: ['/bin/false'],
      process: {
        onHangup: () => () => {},
        onSignal(handler) {
          handlers.add(handler);
          return () => handlers.delete(handler);
        },
        exit(code) {
          throw new Error(`exit ${code}`);
        },
      },
      host: {
        startDaemon: async () => 1,
        internetObstacle: async () => null,
        containersObstacle: async () => null,
        ociObstacle: async () => null,
      },
      ...more,
    },
  };
}
