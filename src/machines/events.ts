/** What machines tell becomes events of the controller. */
import { OnejobError } from '../base/errors.ts';
import type { Variables } from '../base/variables.ts';
import type { Config } from '../config/config.ts';
import type { Controller } from './controller.ts';
import { guestOf } from './guest.ts';
import type { MachineJobs } from './jobs.ts';
import type { MachineHandler } from './join/handler.ts';
import { drained, ended, tokenCameAgain } from './plan.ts';

export interface MachineEventsParts {
  readonly config: Pick<Config, 'hosts' | 'services' | 'origins' | 'secretsKey'>;
  readonly variables: Variables;
  readonly controller: Controller;
  /** null: a command without a daemon has none. */
  readonly jobs: MachineJobs | null;
  /** The package that machines install, see `MachineHandler`. */
  readonly file: string | null;
}

/** s between two reports of a machine. */
const beat = 15;
/** Jobs that one machine can run, whatever it says. */
const mostJobs = 512;

export function machineEvents({ config, variables, controller, jobs, file }: MachineEventsParts): MachineHandler {
  const { hosts, services, origins, secretsKey } = config;
  return {
    secretsOf(run) {
      const machine = controller.get(run);
      // A machine that has joined and is to end is told so.
      if (machine === null || (machine.state === 'ending' && machine.joinedAt === null)) return null;
      const { tokenHash: token, credentialHash: credential, joinedAt } = machine;
      return { token, credential, hasJoined: joinedAt !== null };
    },
    stage({ run, stage, text }) {
      if (stage === 'joined') return controller.joined(run);
      controller.change(run, (machine, now) => {
        if (machine.stage === stage) return machine;
        const known = { ...machine, stage };
        if (stage === 'failed') return ended(known, now, `It could not be set up: ${text.slice(-2000)}`, true);
        if (stage === 'drained')
          return ended(known, now, machine.why ?? 'It had no job and heard nothing of its controller.', false);
        if (stage === 'preempted') return drained(known, now, 'The cloud takes it back.', true);
        return known;
      });
    },
    bind(run, credential) {
      let isBound = false;
      controller.change(run, (machine) => {
        if (machine.credentialHash !== null) return machine;
        isBound = true;
        return { ...machine, credentialHash: credential };
      });
      return isBound;
    },
    async belongings(run) {
      const name = controller.get(run)?.host;
      const host = hosts.find((one) => one.host === name);
      if (host === undefined) throw new OnejobError('E_CONFIG', `The config has no host ${name} any more.`);
      // Also for a command without jobs: a daemon that starts later has some.
      const tunnel = host.pools.some(({ service }) => service === 'own');
      return { ...(await guestOf(host, run, { services, origins, secretsKey, variables })), beat, tunnel };
    },
    stolen(run, from) {
      controller.change(run, (machine, now) => {
        const host = hosts.find((one) => one.host === machine.host);
        return tokenCameAgain(machine, now, host, from);
      });
    },
    beat({ run, busy, agents, slots, idleFor, problem }) {
      const machine = controller.get(run);
      // The machine says it, and its jobs may have its credential.
      const room = Math.min(slots ?? agents, mostJobs);
      const own = jobs?.on(run) ?? 0;
      const report = { busy: Math.max(own, Math.min(busy, room)), agents: room, problem };
      controller.report(run, { ...report, idleFor: own > 0 ? 0 : idleFor / 1000 });
      if (machine === null || machine.state === 'ending') return 'end';
      return machine.state === 'draining' ? 'drain' : 'stay';
    },
    unheard: (run, problem) => controller.unheard(run, problem),
    tunnel: (run, pipe) => jobs?.connected(run, pipe) ?? false,
    package: file,
  };
}
