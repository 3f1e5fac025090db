/**
 * What the own queue takes on an Engine of today, beside the machine's own in the same run. It is started on the machine itself, in a network
 * namespace of its own; its programs are those that the hosts of `npm run test:hosts` have.
 */
import { join } from 'node:path';
import { builtEngines } from '../test/hosts/machine.ts';
import { privateEngine } from '../test/support/dockerd.ts';
import { machineSocket } from '../test/support/engine-http.ts';
import { defaultImage } from '../test/support/require.ts';
import { type Gap, gap, submitToFirstByte, throughput } from './daemon.ts';
import { floor } from './floor.ts';
import { inTurn, type Ratio, type Stats } from './stats.ts';

export interface Sides<T> {
  readonly machine: T;
  readonly today: T;
}

export interface EngineFigures {
  readonly version: string;
  readonly gap: Sides<Gap>;
  readonly submit: Sides<Stats>;
  /** Jobs of `true`, of the raw loop on the same Engine. */
  readonly throughput: Sides<Ratio>;
}

/** @throws Error if such an Engine does not start here, with its last words */
export async function engine29(rounds: { jobs: number; pairs: number; cycles: number }, dir: string): Promise<EngineFigures> {
  const programs = join(await builtEngines(), '29/usr');
  await using engine = await privateEngine({ path: `${programs}/sbin:${programs}/bin` });
  await engine.load(defaultImage);
  const { Version } = (await engine.api.ok('GET', '/version')) as { Version: string };
  const both = async <T>(measure: (socket: string) => Promise<T>): Promise<Sides<T>> => ({
    machine: await measure(machineSocket),
    today: await measure(engine.socket),
  });
  return {
    version: Version,
    gap: await both((socket) => gap(rounds.jobs, dir, socket)),
    submit: await both((socket) => submitToFirstByte(rounds.jobs, socket)),
    throughput: await both(async (socket) => {
      await using daemon = await throughput(socket);
      const raw = async () =>
        (await floor({ socket, image: defaultImage, cycles: rounds.cycles, concurrency: 4, kind: 'plain' })).cyclesPerSecond;
      return await inTurn(rounds.pairs, raw, () => daemon.measure(rounds.cycles));
    }),
  };
}
