/** The scripted agent as a plain process beside a test, registered and with its files as onejob would write them. */
import { type ChildProcess, spawn } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { scratch } from '../../../support/scratch.ts';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from '../standin.ts';
import { agentEntries, agentVersion } from './pack.ts';

const registered = z.object({
  id: z.number(),
  authorization: z.object({ clientId: z.string(), authorizationUrl: z.string() }),
});
export type Registered = z.infer<typeof registered>;

export interface AgentKey {
  readonly publicKey: { readonly exponent: string; readonly modulus: string };
  readonly parameters: Readonly<Record<string, string>>;
}

/** A key in the service's and in the agent's shape. Made once per test file: a new one takes a good part of a second. */
export function makeKey(): {
  readonly publicKey: { exponent: string; modulus: string };
  readonly parameters: Record<string, string>;
} {
  const jwk = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  const wide = (value: string | undefined, length: number): string => {
    const bytes = Buffer.from(value ?? '', 'base64url');
    return Buffer.concat([Buffer.alloc(Math.max(0, length - bytes.length)), bytes]).toString('base64');
  };
  const publicKey = { exponent: 'AQAB', modulus: wide(jwk.n, 256) };
  const [p, q, dp, dq, inverseQ] = [jwk.p, jwk.q, jwk.dp, jwk.dq, jwk.qi].map((value) => wide(value, 128)) as [
    string,
    string,
    string,
    string,
    string,
  ];
  return { publicKey, parameters: { ...publicKey, d: wide(jwk.d, 256), p, q, dp, dq, inverseQ } };
}

/** Adds an agent to a pool with a PAT. */
export async function register(
  service: { readonly url: string; readonly pat: string },
  pool: number,
  name: string,
  key: AgentKey,
): Promise<Registered> {
  const answer = await fetch(`${service.url}/_apis/distributedtask/pools/${pool}/agents`, {
    method: 'POST',
    headers: {
      authorization: `Basic ${Buffer.from(`:${service.pat}`).toString('base64')}`,
      accept: 'application/json;api-version=7.1',
      'content-type': 'application/json',
    },
    body: JSON.stringify({
      name,
      version: agentVersion,
      osDescription: 'Linux',
      maxParallelism: 1,
      provisioningState: 'Provisioned',
      systemCapabilities: { 'Agent.Name': name, 'Agent.Version': agentVersion },
      authorization: { publicKey: key.publicKey },
    }),
  });
  if (!answer.ok) throw new Error(`POST agents: ${answer.status} ${await answer.text()}`);
  return registered.parse(await answer.json());
}

export interface AgentHome extends Disposable {
  /** The agent's root. */
  readonly path: string;
  write(name: string, content: unknown, mode?: number): void;
  /** All that the agent's own logs say, from files whose name begins with `kind`. */
  diag(kind: 'Agent' | 'Worker'): string;
  /** Starts `Agent.Listener` with these words. Its environment is `env`, PATH, and leave to be root. */
  start(words: readonly string[], env?: Readonly<Record<string, string>>): RunningAgent;
}

export interface RunningAgent {
  readonly child: ChildProcess;
  /** Standard output and error so far. */
  said(): string;
  /** Settles once the output holds this. */
  says(text: string): Promise<void>;
  /** Exit code, or the signal's name. */
  readonly ended: Promise<number | string>;
}

/** The package unpacked into a folder of its own. */
export async function agentHome(): Promise<AgentHome> {
  const folder = scratch();
  for (const { path, body, mode } of await agentEntries()) {
    if (body === null) mkdirSync(join(folder.path, path), { recursive: true });
    else writeFileSync(join(folder.path, path), body, { mode });
  }
  const write = (name: string, content: unknown, mode = 0o600): void => {
    const text = typeof content === 'string' ? content : JSON.stringify(content);
    writeFileSync(join(folder.path, name), text);
    chmodSync(join(folder.path, name), mode);
  };
  const diag = (kind: string): string => {
    const place = join(folder.path, '_diag');
    const names = existsSync(place) ? readdirSync(place).filter((name) => name.startsWith(`${kind}_`)) : [];
    return names.map((name) => readFileSync(join(place, name), 'utf8')).join('');
  };
  const running: ChildProcess[] = [];
  return {
    path: folder.path,
    write,
    diag,
    start: (words, env = {}) => {
      const agent = start(folder.path, words, env);
      running.push(agent.child);
      return agent;
    },
    [Symbol.dispose]: () => {
      for (const child of running) child.kill('SIGKILL');
      folder[Symbol.dispose]();
    },
  };
}

/** Writes the three files of a registration. */
export function writeFiles(
  home: AgentHome,
  service: { readonly url: string },
  pool: { readonly id: number; readonly name: string },
  agent: Registered & { readonly name: string },
  key: AgentKey,
  more: Readonly<Record<string, unknown>> = {},
): void {
  const { clientId, authorizationUrl } = agent.authorization;
  home.write('.credentials_rsaparams', key.parameters);
  home.write('.credentials', { scheme: 'OAuth', data: { clientId, authorizationUrl, oauthEndpointUrl: authorizationUrl } });
  home.write('.agent', {
    agentId: agent.id,
    agentName: agent.name,
    poolId: pool.id,
    poolName: pool.name,
    serverUrl: service.url,
    workFolder: '_work',
    ...more,
  });
}

function start(root: string, words: readonly string[], env: Readonly<Record<string, string>>): RunningAgent {
  const path = [dirname(process.execPath), process.env.PATH].join(':');
  const child = spawn(join(root, 'bin/Agent.Listener'), words, {
    cwd: root,
    env: { PATH: path, AGENT_ALLOW_RUNASROOT: '1', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let said = '';
  let wake = Promise.withResolvers<void>();
  const heard = (chunk: Buffer): void => {
    said += chunk.toString();
    wake.resolve();
    wake = Promise.withResolvers();
  };
  child.stdout.on('data', heard);
  child.stderr.on('data', heard);
  const ended = new Promise<number | string>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) => resolve(code ?? signal ?? 'nothing'));
  });
  let over = false;
  const finished = ended.then(() => {
    over = true;
  });
  return {
    child,
    said: () => said,
    ended,
    says: async (text) => {
      while (!said.includes(text)) {
        if (over) throw new Error(`The agent ended and never said "${text}", but:\n${said}`);
        await Promise.race([wake.promise, finished]);
      }
    },
  };
}

export interface Setup extends AsyncDisposable {
  readonly service: AzureDevOps;
  readonly home: AgentHome;
  readonly pool: number;
  /** The agent's registration, whose files are written. */
  readonly agent: number;
  /** Answered requests by the agent's own token, as "METHOD route". */
  calls(): string[];
}

/** A stand-in with a pool, and in it a registered agent that has its files and was never started. */
export async function setup(
  key: AgentKey,
  options: StandInOptions & { readonly more?: Record<string, unknown> } = {},
): Promise<Setup> {
  const { more, ...rest } = options;
  const service = await startAzureDevOps({ pollHoldMs: 2000, ...rest });
  const home = await agentHome();
  const pool = service.addPool('gpus');
  const agent = await register(service, pool, 'agent-1', key);
  writeFiles(home, service, { id: pool, name: 'gpus' }, { ...agent, name: 'agent-1' }, key, more);
  return {
    service,
    home,
    pool,
    agent: agent.id,
    calls: () => service.log.filter((entry) => entry.identity === 'agent').map((entry) => `${entry.method} ${entry.route}`),
    [Symbol.asyncDispose]: async () => {
      home[Symbol.dispose]();
      await service[Symbol.asyncDispose]();
    },
  };
}

/** Starts it, and waits until it is online. */
export async function listening(at: Setup, env: Record<string, string> = {}): Promise<ReturnType<AgentHome['start']>> {
  const running = at.home.start(['run', '--once'], env);
  await running.says('Listening for Jobs');
  return running;
}
