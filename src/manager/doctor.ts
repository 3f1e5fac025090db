/** What `doctor` says: what is known already, and what services, runtimes and the host find when they look now. */
import { abortable } from '../base/abortable.ts';
import { coded, found } from '../base/finding.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { howToApply } from '../config/changed.ts';
import type { FindingView } from '../contract/schema.ts';
import { type Clock, deadline } from '../core/clock.ts';
import { isSameReset } from '../gpu/finding.ts';
import type { CiService, DiagnosticSandboxes } from '../ports/ci-service.ts';
import type { Store } from '../store/store.ts';
import { type Condition, findingOf, isOfHost } from './conditions.ts';
import { deviceFindings, imageFindings, poolFindings, serviceFindings } from './findings.ts';
import type { Loop } from './loop/loop.ts';

/** ms that `doctor` waits for a start in progress. */
const startPatience = 5_000;

/** What the host says when it is looked at. */
export interface HostFindings {
  /** A sentence that says that the config's files have changed since they were loaded; null if they have not. */
  readonly configChanged: () => Promise<string | null>;
  /** What keeps jobs from starting until a person does something. */
  readonly conditions: () => Condition[];
  readonly findings: () => FindingView[];
  /** Findings about disk, secrets and GPUs. They explain why pools lack devices, too. */
  readonly hostFindings: (signal: AbortSignal) => Promise<FindingView[]>;
}

interface DoctorParts {
  readonly clock: Clock;
  readonly loop: Pick<Loop, 'reconciler' | 'deviceManager' | 'runtimes'>;
  readonly queue: Pick<OwnQueue, 'check'>;
  /** All CI services but the own queue. */
  readonly services: readonly CiService[];
  readonly store: Pick<Store, 'registrations'>;
  readonly facts: { readonly temporary: boolean };
  readonly host: HostFindings;
  /** Sandboxes in which services may try things out. */
  readonly diagnostics: DiagnosticSandboxes;
  /** Resolves once everything was looked at, and what is wanted has begun. */
  readonly started: Promise<void>;
}

export async function examine(parts: DoctorParts, signal: AbortSignal): Promise<FindingView[]> {
  const { clock, loop, queue, services, store, facts, host, diagnostics } = parts;
  const { reconciler, deviceManager, runtimes } = loop;
  await startedSoon(parts, signal);
  const changed = await host.configChanged();
  const hint = facts.temporary ? null : howToApply;
  const config: FindingView[] =
    changed === null ? [] : [{ level: 'warning', subject: 'config', message: changed, hint, code: 'config-changed' }];
  const checks = [
    queue.check().then((found) => coded('own-queue', found)),
    serviceFindings({ services, registrations: store.registrations, clock, diagnostics }, signal),
    imageFindings(reconciler.pools, signal),
    ...runtimes.all.map(async (runtime) => coded('runtime', await found(runtime.name, runtime.check(signal), signal))),
  ];
  const wide = await host.hostFindings(signal);
  // A pool's lack of devices is reported once, with its reason.
  const explained = new Set(wide.flatMap(({ subject }) => (subject.startsWith('pool ') ? [subject] : [])));
  const ofDevices = deviceManager === null ? [] : deviceFindings(deviceManager);
  const lacking = ofDevices.filter(({ subject }) => !explained.has(subject));
  const news = wide.filter((one) => !ofDevices.some((other) => isSameReset(one, other)));
  const stuck = host
    .conditions()
    .filter((one) => isOfHost(one) || !explained.has(findingOf(one).subject))
    .map(findingOf);
  const pools = poolFindings(reconciler, deviceManager?.watch.fault ?? null);
  const checked = (await Promise.all(checks)).flat();
  // A service that has asked right now knows better.
  const isTold = ({ subject, code }: FindingView): boolean =>
    code === 'unfit-jobs' && checked.some((one) => one.code === code && one.subject === subject);
  const all = [...config, ...stuck.filter((one) => !isTold(one)), ...pools, ...lacking, ...news, ...host.findings(), ...checked];
  // The reason for a runtime is of no use if the runtime cannot be used now.
  const isAway = checked.some(({ level, subject }) => level === 'error' && runtimes.all.some(({ name }) => name === subject));
  return all.filter(({ level, subject }) => !(isAway && level === 'ok' && subject === 'runtime'));
}

/** Somebody who asks a daemon right after its start wants to know what is wrong, not that it is still starting. */
async function startedSoon({ clock, started }: DoctorParts, signal: AbortSignal): Promise<void> {
  using limit = deadline(clock, startPatience, signal);
  await abortable(started, limit.signal).catch(() => signal.throwIfAborted());
}
