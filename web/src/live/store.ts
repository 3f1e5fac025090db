/** What is known now, for components: each draws again only when what it selects has changed. */
import { createContext, useContext, useSyncExternalStore } from 'react';
import type { Me } from '../views.ts';
import { type Names, named } from '../words/names.ts';
import type { Link } from './connection.ts';
import type { World } from './world.ts';

export interface Live {
  readonly link: Link;
  /** null before the first answer. */
  readonly world: World | null;
  /** null before it is known. */
  readonly me: Me | null;
}

export interface Store {
  get(): Live;
  set(more: Partial<Live>): void;
  subscribe(call: () => void): () => void;
}

export function createStore(first: Live): Store {
  let live = first;
  const calls = new Set<() => void>();
  return {
    get: () => live,
    set(more) {
      live = { ...live, ...more };
      for (const call of calls) call();
    },
    subscribe(call) {
      calls.add(call);
      return () => calls.delete(call);
    },
  };
}

/** The daemon's wall clock, which ticks once a second while what is shown is current. */
export interface Ticker {
  now(): number;
  subscribe(call: () => void): () => void;
  /** `offset`: ms that the daemon's clock is ahead. A stopped one keeps its last time. */
  set(offset: number, runs: boolean): void;
}

export function createTicker(clock: () => number): Ticker {
  const calls = new Set<() => void>();
  let offset = 0;
  let stopped: number | null = null;
  setInterval(() => {
    if (stopped === null) for (const call of calls) call();
  }, 1_000);
  return {
    now: () => stopped ?? clock() + offset,
    subscribe(call) {
      calls.add(call);
      return () => calls.delete(call);
    },
    set(next, runs) {
      const last = clock() + offset;
      offset = next;
      stopped = runs ? null : (stopped ?? last);
    },
  };
}

export interface Services {
  readonly store: Store;
  readonly ticker: Ticker;
}

export const ServicesContext = createContext<Services | null>(null);

export function useServices(): Services {
  const services = useContext(ServicesContext);
  if (services === null) throw new Error('There is no store around this component.');
  return services;
}

/** `select` returns the same object as long as nothing has changed. */
export function useLive<T>(select: (live: Live) => T): T {
  const { store } = useServices();
  return useSyncExternalStore(store.subscribe, () => select(store.get()));
}

/** A text that depends on the time; draws again only when it differs. */
export function useTimed<T extends string | number | boolean>(text: (now: number) => T): T {
  const { ticker } = useServices();
  return useSyncExternalStore(ticker.subscribe, () => text(ticker.now()));
}

const noNames: Names = new Map();

/** Names of devices by UUID. */
export function useNames(): Names {
  return useLive(({ world }) => world?.names ?? noNames);
}

/** A function that puts names of devices into a text of the daemon. */
export function useNamed(): (text: string) => string {
  const names = useNames();
  return (text) => named(text, names);
}

/** Whether this person may change something, and what is shown is current. */
export function useMay(): boolean {
  return useLive(({ me, link }) => me?.role === 'operator' && link.kind === 'live');
}
