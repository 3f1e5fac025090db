/** Checks what must be right before a machine is made, one by one. It creates nothing, and a failed check does not stop the others. */
import { OnejobError } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import type { Cloud, HostPlan } from '../../ports/cloud.ts';
import { examineAfter, examineAll, managerOnly, priceFindings } from '../kit/preflight.ts';
import { spotsOf } from '../offer.ts';
import type { GcpAccess } from './access.ts';
import type { GcpCall, GcpCalls } from './calls.ts';
import type { GcpConfig } from './config.ts';
import { imageOf } from './image.ts';
import { gpusOf, type MachineType, parseType, typeProblem } from './machine-type.ts';
import { longestLife, shortestLife } from './order.ts';
import { needs, permissions } from './permissions.ts';
import { granted, image as imageAnswer, lastOf, type Quotas, subnetwork, withQuotas } from './wire.ts';
import type { Zones } from './zones.ts';

const roleHint = 'Make the role of deploy/cloud/gcp-role.yaml, and give it to this account in the project.';

interface Parts {
  readonly config: GcpConfig;
  readonly calls: GcpCalls;
  readonly access: GcpAccess;
  readonly zones: Zones;
  readonly price: Cloud['price'];
}

export function preflight(parts: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { config, access } = parts;
  const { name } = config;
  const { host } = plan;
  const credential = async (subject: string): Promise<Finding[]> => {
    await access.token(signal);
    return [fine(subject, `Signs in as ${access.name}.`)];
  };
  return examineAfter(
    [`${name}: credential`, credential],
    [
      [`${name}: permissions`, (of) => allowed(of, parts, signal)],
      [`${name}: network`, (of) => network(of, parts, signal)],
      [`${host}: types`, () => typesOf(parts, plan, signal)],
      [`${host}: quota`, () => quotas(parts, plan, signal)],
      [`${host}: image`, (of) => image(of, parts, plan, signal)],
    ],
    [
      [`${host}: end of life`, (of) => [endOfLife(of, config, plan)]],
      [`${host}: price`, (of) => priceFindings(of, plan, parts.price, signal)],
    ],
  );
}

/** Compute Engine cannot say what somebody may do in a project; the Resource Manager can. */
async function allowed(subject: string, { config, calls }: Parts, signal: AbortSignal): Promise<Finding[]> {
  const { project, name, endpoint } = config;
  const wanted = permissions.filter((one) => isNeeded(one, config));
  // That of the same private endpoint, if it is one.
  const manager = endpoint.replace(/\/\/compute(?=[^/]*\.googleapis\.com$)/, '//cloudresourcemanager');
  const call: GcpCall = {
    method: 'POST',
    base: `${manager}/v3`,
    path: `projects/${project}:testIamPermissions`,
    onlyAsks: true,
    body: { permissions: wanted },
    doing: 'ask for permissions',
    needs: needs.permissions,
  };
  try {
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
function isNeeded(permission: string, config: GcpConfig): boolean {
  if (!permission.startsWith('compute.subnetworks.')) return true;
  const isOwn = config.subnetwork.startsWith(`projects/${config.project}/`);
  return isOwn && (config.hasExternalAddress || !permission.endsWith('ExternalIp'));
}

async function network(subject: string, { config, calls }: Parts, signal: AbortSignal): Promise<Finding[]> {
  const call = { path: config.subnetwork, doing: `read subnetwork ${lastOf(config.subnetwork)}`, needs: needs.subnetwork };
  const found = await calls.call(call, subnetwork, signal);
  const text = `Machines join subnetwork ${found.name} of network ${found.network}`;
  if (config.hasExternalAddress) return [fine(subject, `${text}, each with an external address.`)];
  const hint = 'Without it a machine reaches nothing, and never joins.';
  return [warning(subject, `${text}, without an external address. onejob cannot see whether Cloud NAT is set up.`, hint)];
}

function typesOf({ zones }: Parts, { host, types }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const where = async (subject: string, text: string): Promise<Finding[]> => {
    const type = parseType(text);
    const why = typeProblem(text);
    if (why !== null || type === null) return [problem(subject, why ?? 'It is not a type.')];
    return [fine(subject, `It is in ${(await zones(type, signal)).join(', ')}.`)];
  };
  return examineAll(types.map((type) => [`${host}: ${type}`, (of) => where(of, type)]));
}

async function image(
  subject: string,
  { calls }: Parts,
  { image: wanted, disk }: HostPlan,
  signal: AbortSignal,
): Promise<Finding[]> {
  const { path, isFamily } = imageOf(wanted);
  const call = { path, doing: `find image ${wanted.from}`, needs: isFamily ? needs.family : needs.image };
  const { name, diskSizeGb, deprecated, architecture } = await calls.call(call, imageAnswer, signal);
  const size = Number(diskSizeGb ?? 0);
  const state = deprecated?.state ?? '';
  if (architecture === 'ARM64') return [problem(subject, `${name} is for ARM, but types with NVIDIA GPUs are x86.`)];
  if (size > disk) {
    const message = `${name} needs a disk of ${size} GiB, but "disk" is ${disk} GiB.`;
    return [problem(subject, message, `Write at least ${size}GiB.`)];
  }
  if (state !== '' && state !== 'ACTIVE')
    return [warning(subject, `${name} is ${state.toLowerCase()}.`, 'Use a newer image or its family.')];
  return [fine(subject, `${wanted.from} is ${name} now.`)];
}

function endOfLife(subject: string, { deathDate }: GcpConfig, { lifetime }: HostPlan): Finding {
  const seconds = lifetime / 1000;
  if (deathDate === 'manager-only') return managerOnly(subject, 'Let a scheduled job elsewhere sweep too.');
  if (seconds < shortestLife || seconds > longestLife)
    return problem(subject, `"lifetime" is ${seconds} s, but Google takes 30 s to 120 days.`);
  return fine(subject, 'Google deletes each machine when its lifetime is over (maxRunDuration).');
}

interface Limits {
  readonly region: string;
  readonly ofRegion: Quotas;
  readonly ofProject: Quotas;
}

/** Of each quota, what the largest of the types needs. */
async function quotas({ config, calls }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { region, project } = config;
  const { host, max, spot } = plan;
  const [{ quotas: ofRegion }, { quotas: ofProject }] = await Promise.all([
    calls.call({ path: `regions/${region}`, doing: `read the quotas of ${region}`, needs: needs.region }, withQuotas, signal),
    calls.call({ path: `projects/${project}`, doing: `read the quotas of ${project}`, needs: needs.project }, withQuotas, signal),
  ]);
  const types: MachineType[] = plan.types.flatMap((type) => (typeProblem(type) === null ? (parseType(type) ?? []) : []));
  const wants = new Map<string, number>();
  const want = (metric: string, count: number): void => void wants.set(metric, Math.max(wants.get(metric) ?? 0, count * max));
  for (const type of types) {
    const gpus = gpusOf(type);
    if (gpus !== null) {
      want('GPUS_ALL_REGIONS', gpus.count);
      for (const isSpot of spotsOf(plan)) want(`${isSpot ? 'PREEMPTIBLE_' : ''}${gpus.gpu}_GPUS`, gpus.count);
    }
    const cpus = Number(/^n1-.*-(\d+)$/.exec(type.machine)?.[1] ?? 0);
    if (cpus > 0 && spot !== 'only') want('CPUS', cpus);
  }
  return [...wants].map(([metric, count]) => {
    const found = quotaFinding(`${host}: quota ${metric}`, metric, count, { region, ofRegion, ofProject });
    // Without Spot, it has the others.
    const isSpare = spot === 'prefer' && metric.startsWith('PREEMPTIBLE_') && found.level === 'error';
    return isSpare ? { ...found, level: 'warning' } : found;
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
