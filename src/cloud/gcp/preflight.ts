/** What has to be right before a machine is made, asked one by one. Nothing is created, and one question that fails ends no other. */
import { OnejobError } from '../../errors.ts';
import { type Finding, fine, problem, warning } from '../../finding.ts';
import { type HostPlan, needsPrice } from '../cloud.ts';
import type { Access } from './access.ts';
import type { Call, Calls } from './calls.ts';
import { imageOf, imagePath } from './image.ts';
import { gpusOf, type MachineType, parseType, typeProblem } from './machine-type.ts';
import { longestLife, shortestLife } from './order.ts';
import { needs, permissions } from './permissions.ts';
import { listPrice } from './prices.ts';
import type { GcpConfig } from './type.ts';
import { granted, image as imageAnswer, lastOf, type Quotas, subnetwork, withQuotas } from './wire.ts';
import type { Zones } from './zones.ts';

const roleHint = 'Make the role of deploy/cloud/gcp-role.yaml, and give it to this account in the project.';

export function createPreflight(config: GcpConfig, calls: Calls, access: Access, zones: Zones) {
  const { project, region, name } = config;

  /** Whatever `ask` finds; an error is a finding too. */
  async function asked(subject: string, ask: () => Promise<Finding[]>): Promise<Finding[]> {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof OnejobError)) return [problem(subject, String(error))];
      return [problem(subject, error.message, error.hint)];
    }
  }

  async function credential(signal: AbortSignal): Promise<Finding[]> {
    await access.token(signal);
    return [fine(`${name}: credential`, `Signs in as ${access.name}.`)];
  }

  /** Compute Engine cannot say what somebody may do in a project; the Resource Manager can. */
  async function allowed(signal: AbortSignal): Promise<Finding[]> {
    const subject = `${name}: permissions`;
    try {
      const path = `projects/${project}:testIamPermissions`;
      const wanted = permissions.filter(isNeeded);
      const ask = { path, base: `${resourceManager(config.endpoint)}/v3`, body: { permissions: wanted }, onlyAsks: true };
      const call: Call = { ...ask, method: 'POST', doing: 'ask for permissions', needs: needs.permissions };
      const { permissions: mine } = await calls.call(call, granted, signal);
      const missing = wanted.filter((one) => !mine.includes(one));
      const count = `${wanted.length - missing.length} of ${wanted.length} permissions are granted`;
      return [
        missing.length === 0 ? fine(subject, `${count}.`) : problem(subject, `${count} in project ${project}.`, roleHint),
        ...missing.map((one) => problem(`${name}: ${one}`, `This permission is missing in project ${project}.`)),
      ];
    } catch (error) {
      if (!(error instanceof OnejobError) || error.code !== 'E_CLOUD_ACCOUNT') throw error;
      const hint = 'Run "gcloud services enable cloudresourcemanager.googleapis.com" to have them looked at.';
      return [warning(subject, 'They were not examined: the Cloud Resource Manager API is not enabled.', hint)];
    }
  }

  /** Those for a subnetwork of another project are given there, and cannot be seen here. */
  function isNeeded(permission: string): boolean {
    if (!permission.startsWith('compute.subnetworks.')) return true;
    return (
      config.subnetwork.startsWith(`projects/${project}/`) && (config.hasExternalAddress || !permission.endsWith('ExternalIp'))
    );
  }

  async function network(signal: AbortSignal): Promise<Finding[]> {
    const subject = `${name}: network`;
    const call = { path: config.subnetwork, doing: `read subnetwork ${lastOf(config.subnetwork)}`, needs: needs.subnetwork };
    const found = await calls.call(call, subnetwork, signal);
    const text = `Machines join subnetwork ${found.name} of network ${found.network}`;
    if (config.hasExternalAddress) return [fine(subject, `${text}, each with an external address.`)];
    const hint = 'Without it a machine reaches nothing, and never joins.';
    return [warning(subject, `${text}, without an external address. onejob cannot see whether Cloud NAT is set up.`, hint)];
  }

  async function typesOf({ host, types }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
    const found = types.map((type) => {
      const subject = `${host}: ${type}`;
      return asked(subject, async () => {
        const parsed = parseType(type);
        const why = typeProblem(type);
        if (why !== null || parsed === null) return [problem(subject, why ?? 'It is not a type.')];
        return [fine(subject, `It is in ${(await zones(parsed, signal)).join(', ')}.`)];
      });
    });
    return (await Promise.all(found)).flat();
  }

  async function quotas(plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
    const [ofRegion, ofProject] = await Promise.all([
      calls.call({ path: `regions/${region}`, doing: `read the quotas of ${region}`, needs: needs.region }, withQuotas, signal),
      calls.call({ path: `projects/${project}`, doing: `read the quotas of ${project}`, needs: needs.project }, withQuotas, signal),
    ]);
    const usable = plan.types.flatMap((type) => (typeProblem(type) === null ? (parseType(type) ?? []) : []));
    return quotaFindings(plan, usable, { region, ofRegion: ofRegion.quotas, ofProject: ofProject.quotas });
  }

  async function image({ host, image: wanted, disk }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
    const subject = `${host}: image`;
    const parsed = imageOf(wanted);
    const isFamily = parsed.kind === 'family';
    const call = { path: imagePath(parsed), doing: `find image ${wanted.from}`, needs: isFamily ? needs.family : needs.image };
    const found = await calls.call(call, imageAnswer, signal);
    const size = Number(found.diskSizeGb ?? 0);
    const state = found.deprecated?.state ?? '';
    if (found.architecture === 'ARM64') return [problem(subject, `${found.name} is for ARM, but types with NVIDIA GPUs are x86.`)];
    if (size > disk)
      return [
        problem(subject, `${found.name} needs a disk of ${size} GiB, but "disk" is ${disk} GiB.`, `Write at least ${size}GiB.`),
      ];
    if (state !== '' && state !== 'ACTIVE')
      return [warning(subject, `${found.name} is ${state.toLowerCase()}.`, 'Use a newer image or its family.')];
    return [fine(subject, `${wanted.from} is ${found.name} now.`)];
  }

  function end({ host, lifetime }: HostPlan): Finding {
    const subject = `${host}: end of life`;
    const seconds = lifetime / 1000;
    if (config.deathDate === 'manager-only')
      return warning(
        subject,
        'Only onejob ends its machines, because of "death_date: manager-only".',
        'Let a scheduled job elsewhere sweep too.',
      );
    if (seconds < shortestLife || seconds > longestLife)
      return problem(subject, `"lifetime" is ${seconds} s, but Google takes 30 s to 120 days.`);
    return fine(subject, 'Google deletes each machine when its lifetime is over (maxRunDuration).');
  }

  const prices = ({ host, types, spot }: HostPlan): Finding[] =>
    types.map((type) => {
      const price = listPrice(type, spot === 'only');
      const subject = `${host}: price of ${type}`;
      if (price === null)
        return warning(subject, 'It is unknown to onejob.', `${needsPrice} See https://cloud.google.com/compute/gpus-pricing.`);
      return fine(
        subject,
        `About ${price.perHour} USD per hour${spot === 'only' ? ' as Spot' : ''} (estimate, as of ${price.asOf}).`,
      );
    });

  return async (plan: HostPlan, signal: AbortSignal): Promise<Finding[]> => {
    const signedIn = await asked(`${name}: credential`, () => credential(signal));
    // Without a credential every other answer would be the same.
    const others: readonly (readonly [string, () => Promise<Finding[]>])[] = signedIn.some(({ level }) => level === 'error')
      ? []
      : [
          [`${name}: permissions`, () => allowed(signal)],
          [`${name}: network`, () => network(signal)],
          [`${plan.host}: types`, () => typesOf(plan, signal)],
          [`${plan.host}: quota`, () => quotas(plan, signal)],
          [`${plan.host}: image`, () => image(plan, signal)],
        ];
    const found = await Promise.all(others.map(([subject, ask]) => asked(subject, ask)));
    return [...signedIn, ...found.flat(), end(plan), ...prices(plan)];
  };
}

/** That of the same private endpoint, if it is one. */
function resourceManager(endpoint: string): string {
  return endpoint.replace(/\/\/compute(?=[^/]*\.googleapis\.com$)/, '//cloudresourcemanager');
}

interface Limits {
  readonly region: string;
  readonly ofRegion: Quotas;
  readonly ofProject: Quotas;
}

/** Of each quota, what the largest of the types needs. */
function quotaFindings({ host, max, spot }: HostPlan, types: readonly MachineType[], limits: Limits): Finding[] {
  const wants = new Map<string, number>();
  const want = (metric: string, count: number): void => void wants.set(metric, Math.max(wants.get(metric) ?? 0, count * max));
  for (const type of types) {
    const gpus = gpusOf(type);
    if (gpus !== null) want('GPUS_ALL_REGIONS', gpus.count);
    for (const pool of spot === 'never' ? [''] : spot === 'only' ? ['PREEMPTIBLE_'] : ['PREEMPTIBLE_', ''])
      if (gpus !== null) want(`${pool}${gpus.gpu}_GPUS`, gpus.count);
    const cpus = Number(/^n1-.*-(\d+)$/.exec(type.machine)?.[1] ?? 0);
    if (cpus > 0 && spot !== 'only') want('CPUS', cpus);
  }
  return [...wants].map(([metric, count]) => {
    const found = quotaFinding(`${host}: quota ${metric}`, metric, count, limits);
    // Without Spot, it has the others.
    return spot === 'prefer' && metric.startsWith('PREEMPTIBLE_') && found.level === 'error'
      ? { ...found, level: 'warning' }
      : found;
  });
}

function quotaFinding(subject: string, metric: string, count: number, { region, ofRegion, ofProject }: Limits): Finding {
  const isGlobal = metric === 'GPUS_ALL_REGIONS';
  const found = (isGlobal ? ofProject : ofRegion).find((one) => one.metric === metric);
  const where = isGlobal ? 'of all regions together' : `in ${region}`;
  const hint = `Ask for ${count} ${where} in the console, at IAM & Admin, Quotas; that takes hours to days.`;
  if (found === undefined) return warning(subject, `Needs ${count} ${where}. Compute Engine does not show this quota.`, hint);
  const { limit, usage } = found;
  if (limit < count) return problem(subject, `Needs ${count} ${where}, but the limit is ${limit}.`, hint);
  if (limit - usage < count) return warning(subject, `Needs ${count} ${where}, but ${usage} of ${limit} are in use.`, hint);
  return fine(subject, `Needs ${count} ${where}; the limit is ${limit}, and ${usage} are in use.`);
}
