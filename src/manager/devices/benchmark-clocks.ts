/**
 * Locks the clocks of a card for a measurement, and sets them back for certain. The lock is written down, on disk, before the tool is
 * told; it is struck out only after the tool has said that the clocks are as before. A manager that finds one of an agent that is
 * gone sets it back before anybody gets the card. The driver itself forgets locks in a reboot, where that has no effect.
 */
import { OnejobError } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId, DeviceId } from '../../core/slot.ts';
import type { ProofVerdict } from '../../gpu/proof.ts';
import type { ToolReply, ToolRunner } from '../../gpu/run.ts';
import type { KnownDevices } from './known-devices.ts';

interface ClockLockParts {
  readonly clock: Clock;
  readonly runner: Pick<ToolRunner, 'run'>;
  readonly known: Pick<KnownDevices, 'all' | 'get' | 'save'>;
}

type Dirty = Extract<ProofVerdict, { kind: 'dirty' }>;

/** ms that the tool may take. */
const limit = 30_000;

export class ClockLocks {
  readonly #parts: ClockLockParts;

  constructor(parts: ClockLockParts) {
    this.#parts = parts;
  }

  /** @throws OnejobError E_CLOCKS, E_STATE_FULL */
  async lock(uuid: DeviceId, agent: AgentId, mhz: number, signal: AbortSignal): Promise<void> {
    const { clock, known } = this.#parts;
    const device = known.get(uuid);
    if (device === undefined) throw failed(uuid, mhz, 'the card is not known');
    known.save([{ ...device, locked: { agent, mhz, since: clock.wall() } }]);
    const reply = await this.#run(uuid, ['-lgc', `${mhz},${mhz}`], signal);
    signal.throwIfAborted();
    if (reply.code === 0 && !reply.hung) return;
    // It has refused. If it did not end by itself nobody knows what it did, so the lock stays written down.
    if (!reply.hung && reply.code !== null && reply.code < 128) this.#strike(uuid);
    throw failed(uuid, mhz, said(reply));
  }

  /** Locked cards, with the agent that each was locked for. */
  get left(): { readonly uuid: DeviceId; readonly agent: AgentId }[] {
    return this.#parts.known.all.flatMap(({ uuid, locked }) => (locked == null ? [] : [{ uuid, agent: locked.agent }]));
  }

  /** Sets the clocks back, if they are locked. Returns why the card must not be used if that fails; null: it may. */
  async reset(uuid: DeviceId, signal: AbortSignal): Promise<Dirty | null> {
    const { clock, known } = this.#parts;
    const { locked, pciId = null } = known.get(uuid) ?? {};
    if (locked == null) return null;
    const reply = await this.#run(uuid, ['-rgc'], signal);
    signal.throwIfAborted();
    if (reply.code === 0 && !reply.hung) {
      this.#strike(uuid);
      return null;
    }
    return {
      kind: 'dirty',
      code: 'clocks-locked',
      message: `Its clocks are still locked at ${locked.mhz} MHz for a measurement, and could not be set back: ${said(reply)}.`,
      remedy: 'look',
      hint: `Type "nvidia-smi -i ${uuid} -rgc" as root. onejob tries again, too.`,
      evidence: { device: uuid, pciId, at: clock.wall(), checks: [], holders: [], kernel: [] },
    };
  }

  #run(uuid: DeviceId, args: readonly string[], signal: AbortSignal): Promise<ToolReply> {
    return this.#parts.runner.run('nvidia-smi', ['-i', uuid, ...args], { limit, signal });
  }

  #strike(uuid: DeviceId): void {
    const { known } = this.#parts;
    const device = known.get(uuid);
    if (device !== undefined) known.save([{ ...device, locked: null }]);
  }
}

function failed(uuid: DeviceId, mhz: number, why: string): OnejobError {
  return new OnejobError('E_CLOCKS', `Cannot lock the clocks of ${uuid} at ${mhz} MHz: ${why}.`, {
    hint: 'Run the daemon as root, name a clock that "nvidia-smi -q -d SUPPORTED_CLOCKS" lists, or remove "benchmark.clock".',
    retry: true,
  });
}

/** What the tool said, as the end of a sentence. */
function said({ hung, missing, code, output }: ToolReply): string {
  if (missing) return 'there is no nvidia-smi';
  if (hung) return 'nvidia-smi did not end in time';
  const line = output.split('\n').find((one) => one.trim() !== '');
  return line === undefined ? `nvidia-smi exited with ${code}` : `nvidia-smi says "${line.trim().replace(/\.$/, '')}"`;
}
