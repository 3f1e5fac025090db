/** What people at a terminal wait for: `status`, and many jobs at once. */
import { onejob } from '../test/support/onejob.ts';
import { type Stats, stats } from './stats.ts';

/** `onejob status` of a daemon with sixteen slots. ms wall */
export async function statusWall(rounds: number): Promise<{ readonly status: Stats; readonly floor: Stats }> {
  await using home = await onejob({ config: JSON.stringify({ pools: { default: { runtime: 'process', agents: 16 } } }) });
  await home.up();
  const timed = async (args: readonly string[]): Promise<number> => {
    const began = performance.now();
    const { code, stderr } = await home.cli(args).ended;
    if (code !== 0) throw new Error(`onejob ${args.join(' ')} ended with ${code}: ${stderr}`);
    return performance.now() - began;
  };
  const status: number[] = [];
  const floor: number[] = [];
  for (let n = 0; n < rounds; n += 1) {
    // What any command of this program takes: the start of Node.
    floor.push(await timed(['version']));
    status.push(await timed(['status']));
  }
  return { status: stats(status), floor: stats(floor) };
}

/** One command that submits so many jobs. ms wall, until it has ended. */
export async function submitMany(jobs: number, rounds: number): Promise<Stats> {
  const times: number[] = [];
  for (let n = 0; n < rounds; n += 1) {
    await using home = await onejob({ config: JSON.stringify({ pools: { default: { runtime: 'process', agents: 1 } } }) });
    await home.up();
    await home.api.pause(null, 'bench');
    const began = performance.now();
    const { code } = await home.run('--no-workspace', '--detach', '--array', `0-${jobs - 1}`, '--', 'true').ended;
    times.push(performance.now() - began);
    if (code !== 0) throw new Error(`onejob run ended with ${code}`);
  }
  return stats(times);
}
