/** The findings of `doctor` about the loop: what keeps pools from starting jobs now, and what a person can do about it. */
import { abortable } from '../base/abortable.ts';
import { messageOf, OnejobError } from '../base/errors.ts';
import { coded, fine, problem, warning } from '../base/finding.ts';
import { quoted } from '../base/quoted.ts';
import type { DeviceView, FindingView } from '../contract/schema.ts';
import { deadline } from '../core/clock.ts';
import type { CiService, DiagnosticSandboxes } from '../ports/ci-service.ts';
import type { DeviceAccess } from './devices/device-views.ts';
import type { DeviceRegistry } from './devices/registry.ts';
import type { Pool } from './loop/pool.ts';
import type { Reconciler } from './loop/reconciler.ts';
import type { ForgetParts } from './loop/shutdown.ts';

/**
 * A pause of all pools is reported once. A runtime reports by itself that it is away. `fault`, an error of all GPUs, is reported
 * with the GPUs.
 */
export function poolFindings(reconciler: Reconciler, fault: string | null = null): FindingView[] {
  const host = reconciler.pause.details.map((held) => paused('this host', held));
  return [...host, ...reconciler.pools.flatMap((pool) => findingsOf(pool, fault))];
}

/**
 * Pools whose image, or one for their jobs, can neither be pulled now nor was needed yet: without standbys the first job would find out. An absent Engine
 * is reported by itself.
 */
export async function imageFindings(pools: readonly Pool[], signal: AbortSignal): Promise<FindingView[]> {
  const asked = new Map<string, Promise<string | null>>();
  const found = pools.map(async ({ config: { name, recipe }, runtime, awaitsImage, away, leaving }): Promise<FindingView[]> => {
    if (awaitsImage !== null || away !== null || leaving) return [];
    const { images = [], pull = recipe.pull, logins = null } = recipe.containers?.ready ?? {};
    const all = [recipe, ...images.map((image) => ({ ...recipe, image, pull }))].map(async (one) => {
      const key = `${runtime.name} ${one.pull} ${one.image} ${one === recipe ? null : logins}`;
      const trouble = asked.get(key) ?? runtime.imageTrouble?.(one, signal).catch(() => null) ?? Promise.resolve(null);
      asked.set(key, trouble);
      const why = await trouble;
      return why === null ? [] : [imageFinding(name, `image "${one.image}" on ${runtime.name}`, why)];
    });
    return (await Promise.all(all)).flat();
  });
  return (await Promise.all(found)).flat();
}

function imageFinding(pool: string, image: string, why: string): FindingView {
  return problem(`pool ${pool}`, `It waits for ${image}: ${why}`, null, 'image-waits');
}

/** What to do about a new image that fails. */
export const updateHint = 'Fix the image, or name the previous one in the config; onejob tries again by itself.';

function findingsOf(
  { config: { name }, pause, draining, leaving, backoff, awaitsImage, rollout: { update } }: Pool,
  fault: string | null,
): FindingView[] {
  const subject = `pool ${name}`;
  const people = pause.details.filter((held) => held !== fault);
  const found = people.map((held) => {
    if (!held.startsWith('by ')) return paused(subject, held);
    const reason = held.replace(/^by /, '');
    return warning(subject, `It is paused ${held}.`, `Type "onejob resume ${name} --reason ${quoted(reason)}".`, 'pool-paused');
  });
  // A pool that left the config only empties itself, and cannot be resumed.
  if (draining && !leaving)
    found.push(warning(subject, 'It is draining: nothing new starts.', `Type "onejob resume ${name}".`, 'pool-draining'));
  if (backoff !== null && awaitsImage !== null) found.push(imageFinding(name, awaitsImage, backoff.last.message));
  else if (backoff !== null) {
    const times = backoff.failures === 1 ? 'once' : `${backoff.failures} times in a row`;
    found.push(warning(subject, `It failed ${times} and waits before it tries again: ${backoff.last.message}`, null, 'pool-fails'));
  }
  if (update !== null && update.failure !== null) {
    found.push(warning(subject, `${update.text.slice(0, 1).toUpperCase()}${update.text.slice(1)}.`, updateHint, 'image-update'));
  } else if (update !== null) found.push(fine(subject, `Slot ${update.text}.`, null, 'image-update'));
  return found;
}

function paused(subject: string, held: string): FindingView {
  return warning(subject, `Nothing new starts: ${held.replace(/\.$/, '')}.`, null, 'pool-paused');
}

/** What keeps devices from being used, and what to type about it; one line if nothing does. */
export function deviceFindings({ registry, watch, views }: Pick<DeviceAccess, 'registry' | 'watch' | 'views'>): FindingView[] {
  // Problems that instances have because of their GPU are reported once, for the GPU.
  const own = views.all().filter(({ uuid, state }) => state === registry.stateOf(uuid));
  const fault: FindingView[] = watch.fault === null ? [] : [problem('GPUs', watch.fault, null, 'gpus-fault')];
  const found = [...fault, ...own.flatMap(findingOf), ...registry.partition.short.map(shortFinding)];
  if (found.length > 0 || registry.inventory === null) return found;
  const count = registry.inventory.devices.length;
  return [fine('GPUs', `${count} in use by onejob, none out of service.`, null, 'devices')];
}

function findingOf({ state, uuid, why, slot, hint, retryAt }: DeviceView): FindingView[] {
  const said = why ?? '';
  const message = sentence((said.startsWith(`${uuid} `) ? said.slice(uuid.length + 1) : said).replace(/^is /, ''));
  switch (state) {
    case 'missing': {
      const waits = slot === null ? '' : ` Slot ${slot} waits for it.`;
      return [problem(uuid, `${message}${waits}`, hint, 'device-missing')];
    }
    case 'quarantined': {
      const holder = slot === null ? '' : ` Slot ${slot} has no other.`;
      const again = retryAt === null ? '' : ' onejob tries again automatically.';
      return [problem(uuid, `${message}${holder}${again}`, hint, 'device-quarantined')];
    }
    case 'unknown':
    case 'elsewhere':
      return [warning(uuid, message, hint, `device-${state}`)];
    default:
      return [];
  }
}

/** Makes `absent since boot; layout not restored?` a sentence. */
function sentence(text: string): string {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? '' : '.'}`;
}

function shortFinding({ pool, wanted, got }: DeviceRegistry['partition']['short'][number]): FindingView {
  const message = `It wants ${wanted} agents, but this host has free devices that fit for ${got}.`;
  return warning(
    `pool ${pool}`,
    message,
    `See "onejob gpus", and set "agents: ${got}" or other "devices" in the config.`,
    'devices-short',
  );
}

interface ServiceFindingsParts extends Pick<ForgetParts, 'registrations' | 'clock'> {
  /** All CI services but the own queue. */
  readonly services: readonly Pick<CiService, 'name' | 'check'>[];
  /** Sandboxes in which services may try things out. */
  readonly diagnostics: DiagnosticSandboxes;
}

/** ms that one service may take: a silent one must not hide the rest of the findings. */
const patience = 30_000;

/** Findings of each CI service, in bounded time, and registrations at services that are no longer used. */
export async function serviceFindings(parts: ServiceFindingsParts, signal: AbortSignal): Promise<FindingView[]> {
  const found = await Promise.all(parts.services.map((service) => checked(service, parts, signal)));
  return [...coded('service', found.flat()), ...orphaned(parts)];
}

async function checked(
  service: Pick<CiService, 'name' | 'check'>,
  { clock, diagnostics }: Pick<ServiceFindingsParts, 'clock' | 'diagnostics'>,
  signal: AbortSignal,
): Promise<FindingView[]> {
  const subject = `service ${service.name}`;
  using limit = deadline(clock, patience, signal);
  try {
    return await abortable(service.check(limit.signal, diagnostics), limit.signal);
  } catch (error) {
    signal.throwIfAborted();
    if (limit.passed) {
      const message = `It has not answered within ${patience / 1000} s, so its state is unknown.`;
      return [problem(subject, message, 'Check that this host can reach it, and try again.', 'service-silent')];
    }
    const said = problem(subject, messageOf(error), error instanceof OnejobError ? error.hint : null);
    return [{ ...said, code: error instanceof OnejobError ? error.code : 'E_BUG' }];
  }
}

/** Maximum number of names in a line. */
const named = 5;

function orphaned({ services, registrations }: ServiceFindingsParts): FindingView[] {
  const used = new Set(services.map(({ name }) => name));
  return registrations.services().flatMap((name) => {
    const names = used.has(name) ? [] : registrations.open(name).map((one) => one.name);
    if (names.length === 0) return [];
    const more = names.length > named ? ` and ${names.length - named} more` : '';
    const what = names.length === 1 ? 'One registration is' : `${names.length} registrations are`;
    const list = `${names.slice(0, named).join(', ')}${more}`;
    const message = `${what} left at this service, but no pool of the config uses it any more: ${list}.`;
    const hint = 'Remove them on its website, or use it in a pool again and stop with "onejob down --forget".';
    return [warning(`service ${name}`, message, hint, 'service-leftovers')];
  });
}
