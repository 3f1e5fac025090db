/** Fleets for tests: files of a folder that is gone afterwards, and what becomes of them. */

import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parse } from 'yaml';
import { composeOnejob, type HostRule } from '../../src/cli/compose-import.ts';
import { types } from '../../src/cli/types.ts';
import { readEnvironment } from '../../src/config/environment.ts';
import { type Checked, checkConfig } from '../../src/config/load.ts';
import { importCompose } from './import.ts';

const noEnvironment = readEnvironment({ HOME: '/nonexistent' });

/** Files by path; a path that ends in `/` is a folder. */
export function writeFleet(root: string, files: Readonly<Record<string, string>>): void {
  for (const [path, text] of Object.entries(files)) {
    const full = join(root, path);
    mkdirSync(path.endsWith('/') ? full : dirname(full), { recursive: true });
    if (!path.endsWith('/')) writeFileSync(full, text);
  }
}

type Imported = Awaited<ReturnType<typeof importCompose>>;

export interface Tried extends Imported {
  /** Pools of a host as its file has them. */
  pools(host?: string): Record<string, Record<string, unknown>>;
  /** The whole file of a host, parsed. */
  file(host?: string): Record<string, unknown>;
  /** `host: agent agent`, in order. */
  readonly groups: readonly string[];
  /** `FILE:LINE: MESSAGE` of all warnings. */
  readonly warnings: readonly string[];
  readonly notes: readonly string[];
  /** Errors that loading the files of all hosts found: there must be none. */
  readonly refused: readonly string[];
}

/** Imports a folder, writes what comes out next to it, and loads that as a daemon would. */
export async function tryImport(root: string, rules: readonly HostRule[] = []): Promise<Tried> {
  const found = await importCompose(root, rules, composeOnejob(noEnvironment).errorsIn);
  const refused: string[] = [];
  for (const { name, config } of found.hosts) {
    const { errors } = await loadText(`${root}.${name}.yml`, config);
    refused.push(...errors.map(({ line, key, message }) => `${name}:${line}: ${key} ${message}`));
  }
  const host = (name?: string) => (name === undefined ? found.hosts[0] : found.hosts.find((one) => one.name === name));
  const file = (name?: string): Record<string, unknown> => parse(host(name)?.config ?? '{}');
  const said = (level: string) =>
    found.remarks
      .filter((one) => one.level === level)
      .map((one) => `${one.file}${one.line === null ? '' : `:${one.line}`}: ${one.message}`);
  return {
    ...found,
    file,
    pools: (name) => file(name).pools as Record<string, Record<string, unknown>>,
    groups: found.hosts.map((one) => `${one.name}: ${one.agents.map((agent) => agent.name).join(' ')}`),
    warnings: said('warning'),
    notes: said('note'),
    refused,
  };
}

export async function loadText(path: string, text: string): Promise<Checked> {
  writeFileSync(path, text);
  return checkConfig({ types, flags: { config: path }, env: noEnvironment, look: null });
}

/** A Compose file of one plain agent; `more`: lines of its service, `command`: further words of its command. */
export function composeOf(name: string, more = '', command: readonly string[] = []): string {
  const words = ['start', '--disconnect-after-job', '--tags=queue=gpu', `--name=${name}`, ...command];
  return `services:
  buildkite:
    image: registry.example.org/agent:1
    env_file: ../token.env
    command: ${JSON.stringify(words)}
${more.replaceAll(/^(?=.)/gm, '    ')}
`;
}
