/** What an Engine still holds that carries onejob's labels. */
import { type Engine, engineAt } from './engine-http.ts';

export interface EngineThing {
  readonly kind: 'container' | 'network' | 'volume';
  /** What the Engine removes it by. */
  readonly id: string;
  readonly detail: string;
  readonly owner: string;
}

/** Null when no Engine answers at `socket`. `owner` null: everybody's. */
export async function engineThings(socket: string, owner: string | null): Promise<EngineThing[] | null> {
  using engine = engineAt(socket);
  const label = owner === null ? 'onejob.owner' : `onejob.owner=${owner}`;
  const query = `filters=${encodeURIComponent(JSON.stringify({ label: [label] }))}`;
  try {
    await engine.ok('GET', '/version');
  } catch {
    return null;
  }
  const [containers, networks, volumes] = await Promise.all([
    ask<Container[]>(engine, `/containers/json?all=1&${query}`),
    ask<Network[]>(engine, `/networks?${query}`),
    ask<{ Volumes: Volume[] | null }>(engine, `/volumes?${query}`),
  ]);
  return [
    ...containers.map(
      (one): EngineThing => ({
        kind: 'container',
        id: one.Id.slice(0, 12),
        detail: `${one.Names[0]?.slice(1) ?? ''} ${one.State}, slot ${one.Labels['onejob.slot'] ?? '?'}`,
        owner: ownerIn(one.Labels),
      }),
    ),
    ...networks.map((one): EngineThing => ({ kind: 'network', id: one.Name, detail: one.Driver, owner: ownerIn(one.Labels) })),
    ...(volumes.Volumes ?? []).map(
      (one): EngineThing => ({ kind: 'volume', id: one.Name, detail: one.Driver, owner: ownerIn(one.Labels ?? {}) }),
    ),
  ];
}

/** Removes them; for tests that have failed already. */
export async function removeEngineThings(socket: string, things: readonly EngineThing[]): Promise<void> {
  using engine = engineAt(socket);
  for (const kind of ['container', 'network', 'volume'] as const) {
    for (const { id } of things.filter((one) => one.kind === kind)) await engine.call('DELETE', `/${kind}s/${id}?force=1&v=1`);
  }
}

interface Container {
  readonly Id: string;
  readonly Names: readonly string[];
  readonly State: string;
  readonly Labels: Record<string, string>;
}
interface Network {
  readonly Name: string;
  readonly Driver: string;
  readonly Labels: Record<string, string>;
}
interface Volume {
  readonly Name: string;
  readonly Driver: string;
  readonly Labels: Record<string, string> | null;
}

function ownerIn(labels: Record<string, string>): string {
  return labels['onejob.owner'] ?? '?';
}

async function ask<T>(engine: Engine, path: string): Promise<T> {
  return (await engine.ok('GET', path)) as T;
}
