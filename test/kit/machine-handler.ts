/** A controller's handler in memory. */
import type { Duplex } from 'node:stream';
import type { MachineHandler } from '../../src/machines/join/handler.ts';
import { type BeatCall, hashOf, type JoinAnswer, newSecret, type Order, type StageCall } from '../../src/machines/join/protocol.ts';

interface Entry {
  token: string;
  credential: string | null;
  hasJoined: boolean;
  order: Order;
  belongings: JoinAnswer;
}

/** `heard`: called after anything came in. */
export function memoryHandler(heard: () => void = () => {}) {
  const runs = new Map<string, Entry>();
  const stages: StageCall[] = [];
  const beats: BeatCall[] = [];
  const pipes: { run: string; pipe: Duplex }[] = [];
  const thefts: { run: string; from: string }[] = [];
  const unheard: [run: string, problem: string][] = [];
  let file: string | null = null;
  let fails: Error | null = null;
  const entry = (run: string): Entry => {
    const found = runs.get(run);
    if (found === undefined) throw new Error(`no run ${run}`);
    return found;
  };
  const handler: MachineHandler = {
    secretsOf(run) {
      if (fails !== null) throw fails;
      return runs.get(run) ?? null;
    },
    stage(said) {
      stages.push(said);
      if (said.stage === 'joined') entry(said.run).hasJoined = true;
      heard();
    },
    bind(run, credential) {
      const one = entry(run);
      if (one.credential !== null) return one.credential === credential;
      one.credential = credential;
      return true;
    },
    belongings: (run) => entry(run).belongings,
    stolen(run, from) {
      thefts.push({ run, from });
      heard();
    },
    unheard: (run, problem) => void unheard.push([run, problem]),
    beat(said) {
      beats.push(said);
      heard();
      return entry(said.run).order;
    },
    tunnel(run, pipe) {
      pipes.push({ run, pipe });
      heard();
      return true;
    },
    get package() {
      return file;
    },
  };
  return {
    handler,
    stages,
    beats,
    thefts,
    pipes,
    unheard,
    /** Expects a machine. Returns its token. */
    expect(run: string, belongings: JoinAnswer = { config: 'pools: {}\n', files: [], beat: 30 }): string {
      const token = newSecret();
      runs.set(run, { token: hashOf(token), credential: null, hasJoined: false, order: 'stay', belongings });
      return token;
    },
    forget: (run: string) => runs.delete(run),
    order(run: string, order: Order): void {
      entry(run).order = order;
    },
    serve(path: string | null): void {
      file = path;
    },
    /** What every call throws from now on. */
    failWith(error: Error | null): void {
      fails = error;
    },
    /** Everything that is stored. */
    stored: () => JSON.stringify([...runs]),
  };
}
