/** `onejob azure` as its users start and end it, and what must not be there afterwards. */
import { expect } from 'vitest';
import type { AgentView } from '../standins/azure-devops/standin.ts';
import { type AzureBench, isPlaceholder } from './azure.ts';
import type { Child, Ended } from './child.ts';
import { engineAt, machineSocket } from './engine-http.ts';
import type { Home } from './onejob.ts';

/** Starts it and waits until it leads. @throws Error with what it said when it ends instead */
export async function startDropIn(here: Home, args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Child> {
  const child = here.cli(['azure', ...args], { env });
  await child.says(/onejob is up/);
  return child;
}

/** Agents at the service, without placeholders. */
export function agentsAt({ azure, pool }: Pick<AzureBench, 'azure' | 'pool'>): AgentView[] {
  return azure.agents(pool).filter(({ name }) => !isPlaceholder(name));
}

/** Names of the agents that had jobs, in the order of the jobs. */
export function namesOf({ azure, pool }: Pick<AzureBench, 'azure' | 'pool'>): string[] {
  return azure.requests(pool).map(({ agent }) => agent?.name ?? '');
}

/** Longer than the grace of any job, and than a person looks at a prompt that does not come back, in ms. */
const patience = 40_000;

/** Ends it as a person does. @throws Error with what it said when it does not end well, or not soon */
export async function endDropIn(child: Child, signal: NodeJS.Signals = 'SIGINT'): Promise<Ended> {
  child.signal(signal);
  await expect.poll(() => child.running, { timeout: patience, message: `it continues after ${signal}` }).toBe(false);
  const end = await child.ended;
  if (end.code !== 0) throw new Error(`"onejob azure" ended with ${end.code ?? end.signal}:\n${end.stdout}${end.stderr}`);
  return end;
}

/** Containers and networks of this home's installation, by name. */
export async function thingsOf(owner: string, socket = machineSocket): Promise<string[]> {
  using engine = engineAt(socket);
  const filters = encodeURIComponent(JSON.stringify({ label: [`onejob.owner=${owner}`] }));
  const containers = (await engine.ok('GET', `/containers/json?all=1&filters=${filters}`)) as { readonly Names: string[] }[];
  const networks = (await engine.ok('GET', `/networks?filters=${filters}`)) as { readonly Name: string }[];
  return [...containers.flatMap(({ Names }) => Names), ...networks.map(({ Name }) => Name)];
}

/** Nothing of it is left, neither here nor at the service, but the placeholder. */
export async function expectGone(bench: AzureBench, owner: string, socket = machineSocket): Promise<void> {
  expect(await thingsOf(owner, socket)).toEqual([]);
  const names = bench.azure.agents(bench.pool).map(({ name }) => name);
  expect(names.length).toBeGreaterThan(0);
  expect(names.filter((name) => !isPlaceholder(name))).toEqual([]);
}
