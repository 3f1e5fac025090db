/** The programs of a test's Kubernetes, as its tests see them, and what they stand on. */
import { closeSync, existsSync, openSync, readFileSync, readSync, statSync } from 'node:fs';
import { request } from 'node:https';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Child, startChild } from './child.ts';
import type { KubernetesProgram } from './kubernetes-programs.ts';

export interface KubernetesDaemon {
  /** Null while it does not run. */
  readonly pid: number | null;
  /** What it has logged since its last start. */
  readonly log: string;
  /** Resolves once it does its work. */
  start(): Promise<void>;
  /** SIGTERM, and waits for the end: an API server takes 60 s while somebody watches. */
  stop(): Promise<void>;
  /** SIGKILL, and waits for the end. */
  kill(): Promise<void>;
}

export interface Answer {
  readonly status: number;
  readonly body: unknown;
}

/** What all parts of one cluster share. */
export interface Ground {
  readonly home: string;
  /** Tells clusters of this machine apart; in their addresses. */
  readonly number: number;
  /** Of this machine, as the cluster sees it. */
  readonly address: string;
  readonly server: string;
  /** Its cgroup, from each hierarchy's root. */
  readonly group: string;
  program(name: KubernetesProgram): string;
  /** Starts a program in the cluster's cgroup. What it says goes into the file `log`, if one is named. */
  begin(words: readonly string[], log?: string): Child;
  /** One call to the API server as the administrator. */
  call(method: string, path: string, body?: unknown): Promise<Answer>;
}

/** For whatever gets ready: machines of CI are busy. */
const patience = 120_000;

export function beginIn(home: string, procs: string): Ground['begin'] {
  return (words, log) => {
    const [script, ...own] =
      log === undefined ? ['echo $$ >"$0" && exec "$@"'] : ['echo $$ >"$0" && log=$1 && shift && exec "$@" >>"$log" 2>&1', log];
    return startChild('sh', ['-c', script, procs, ...own, ...words], { cwd: home, env: { PATH: process.env.PATH, HOME: home } });
  };
}

/** Runs a command of the cluster to its end; what it printed. @throws Error with all output when it fails */
export async function toEnd(ground: Ground, words: readonly string[], input = ''): Promise<string> {
  const child = ground.begin(words);
  child.type(input);
  const { code, signal, stdout, stderr } = await child.ended;
  if (code === 0) return stdout;
  throw new Error(`"${words.join(' ')}" ended with ${code ?? signal}:\n${stdout}${stderr}`);
}

/** Waits until it is so, as long as `runs`. @throws Error when it takes too long */
export async function until(isSo: () => Promise<boolean>, what: string, runs: () => boolean = () => true): Promise<void> {
  for (const from = Date.now(); !(await isSo()); await sleep(50)) {
    if (!runs()) throw new Error(`${what}: ended before`);
    if (Date.now() - from > patience) throw new Error(`${what}: not so after ${patience / 1000} s`);
  }
}

/** `isReady`: looks whether it does its work. */
export function daemon(ground: Ground, name: string, words: readonly string[], isReady: () => Promise<boolean>): KubernetesDaemon {
  const file = join(ground.home, 'log', name);
  let child: Child | null = null;
  let from = 0;
  const read = (): string => {
    if (!existsSync(file)) return '';
    const handle = openSync(file, 'r');
    try {
      const bytes = Buffer.alloc(Math.max(0, statSync(file).size - from));
      readSync(handle, bytes, 0, bytes.length, from);
      return bytes.toString();
    } finally {
      closeSync(handle);
    }
  };
  async function end(signal: NodeJS.Signals): Promise<void> {
    child?.signal(signal);
    await child?.ended;
  }
  return {
    get pid() {
      return child?.running ? child.pid : null;
    },
    get log() {
      return read();
    },
    async start() {
      if (child?.running) return;
      from = existsSync(file) ? statSync(file).size : 0;
      const begun = ground.begin(words, file);
      child = begun;
      await until(isReady, `${name} gets ready`, () => begun.running).catch((error: Error) => {
        throw new Error(`${error.message}; its last words:\n${read().slice(-4_000)}`);
      });
    },
    stop: () => end('SIGTERM'),
    kill: () => end('SIGKILL'),
  };
}

/** Calls as who has the token. Whoever does not answer has the status 0. */
export function caller({ home, server, token }: { home: string; server: string; token: string }): Ground['call'] {
  const ca = readFileSync(join(home, 'pki', 'ca.crt'));
  return (method, path, body) =>
    new Promise((resolve) => {
      const headers = { authorization: `Bearer ${token}`, accept: 'application/json', 'content-type': 'application/json' };
      const sent = request(`${server}${path}`, { method, ca, headers, agent: false, timeout: 20_000 }, (answer) => {
        text(answer).then(
          (said) => {
            const isJson = answer.headers['content-type']?.startsWith('application/json');
            resolve({ status: answer.statusCode ?? 0, body: isJson ? JSON.parse(said) : said });
          },
          (error) => resolve({ status: 0, body: String(error) }),
        );
      });
      sent.on('timeout', () => sent.destroy(new Error('no answer in 20 s')));
      sent.on('error', (error) => resolve({ status: 0, body: String(error) }));
      sent.end(body === undefined ? undefined : JSON.stringify(body));
    });
}
