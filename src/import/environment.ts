/** `environment` of a Compose service: what it means for the agent, for devices, for CPUs, and what is left for jobs. */
import { flagOf } from './agent-flags.ts';
import { deviceVariables } from './devices.ts';
import { looksSecret, soundsSecret } from './interpolate.ts';
import { pairsOf } from './plain.ts';

type Say = (level: 'warning' | 'note', path: readonly (string | number)[], message: string) => void;

/** Variables that tell programs how many threads to use; the first that is there becomes `cpu_env`. */
const threads = [
  'JULIA_CPU_THREADS',
  'OMP_NUM_THREADS',
  'JULIA_NUM_THREADS',
  'CMAKE_BUILD_PARALLEL_LEVEL',
  'MAX_JOBS',
  'NUM_CPUS',
  'NPROC',
  'RAYON_NUM_THREADS',
  'GOMAXPROCS',
  'MKL_NUM_THREADS',
  'OPENBLAS_NUM_THREADS',
];

export interface EnvironmentFound {
  /** For jobs. */
  readonly env: Readonly<Record<string, string | number>>;
  /** All that has a value, for what chooses devices. */
  readonly all: ReadonlyMap<string, string>;
  /** Flags of the agent that were said with a variable. */
  readonly flags: readonly { readonly name: string; readonly value: string; readonly path: readonly (string | number)[] }[];
  readonly cpu: { readonly variable: string; readonly count: number } | null;
}

/** `cpus`: of the service, when it is limited already. */
export function readEnvironment(written: unknown, cpus: number | null, say: Say): EnvironmentFound {
  const env: Record<string, string | number> = {};
  const all = new Map<string, string>();
  const flags: { name: string; value: string; path: readonly (string | number)[] }[] = [];
  for (const { key, value, at } of pairsOf(written)) {
    const path = ['environment', at];
    const flag = flagOf(key);
    if (value === null) {
      if (flag === null && !deviceVariables.has(key))
        say('warning', path, `${key} is not carried over: its value comes from the shell that starts Compose`);
      continue;
    }
    all.set(key, value);
    if (flag !== null) flags.push({ name: flag, value, path });
    else if (deviceVariables.has(key) || key === 'NVIDIA_DRIVER_CAPABILITIES' || key === 'NVIDIA_REQUIRE_CUDA') continue;
    else if (!/^[A-Za-z_][A-Za-z0-9_.-]*$/.test(key) || key === '__proto__')
      say('warning', path, `${JSON.stringify(key)} is not carried over: it is no name of a variable`);
    // Encrypted values may begin with a slash, as paths do.
    else if (soundsSecret(key) && value !== '' && (key.startsWith('SECRET_') || !value.startsWith('/')))
      say(
        'warning',
        path,
        `${key} is not carried over: it sounds like a secret, and those stand in no config; see "onejob secret"`,
      );
    else if (looksSecret(value))
      say(
        'warning',
        path,
        `${key} is not carried over: its value looks like a secret, and those stand in no config; see "onejob secret"`,
      );
    else env[key] = value.includes('\0') ? '' : asNumber(value);
  }
  const variable = threads.find((name) => /^[1-9]\d{0,2}$/.test(String(env[name] ?? '')));
  const count = variable === undefined ? null : Number(env[variable]);
  if (variable === undefined || count === null || (cpus !== null && Math.max(1, Math.floor(cpus)) !== count))
    return { env, all, flags, cpu: null };
  const { [variable]: _, ...rest } = env;
  return { env: rest, all, flags, cpu: { variable, count } };
}

/** Digits without quotes are easier to read, and mean the same. */
function asNumber(value: string): string | number {
  return /^(0|[1-9]\d{0,8})$/.test(value) ? Number(value) : value;
}
