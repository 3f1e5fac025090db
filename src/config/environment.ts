/** The only reader of the environment, besides `src/secrets`. Read once at the start, passed in everywhere else. */
import { availableParallelism, homedir, hostname, totalmem } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { handedOn, type Proxies, readProxies } from './proxies.ts';
import { shortHost } from './template.ts';

/** What the process was started with. Absent and empty variables are both null. */
export interface Environment {
  readonly config: string | null;
  readonly stateDir: string | null;
  readonly socket: string | null;
  readonly home: string;
  /** `$XDG_CONFIG_HOME`, else `~/.config`. */
  readonly configHome: string;
  /** `$XDG_STATE_HOME`, else `~/.local/state`. */
  readonly stateHome: string;
  /** `$XDG_RUNTIME_DIR`; null when there is none. */
  readonly runtimeDir: string | null;
  readonly docker: DockerEnvironment;
  /** By which services are reached. */
  readonly proxies: Proxies;
  /** What a process of onejob's that asks something of services is started with. Its values can be secret. */
  readonly handedOn: Readonly<Record<string, string>>;
  readonly noColor: boolean;
  readonly forceColor: boolean;
  readonly ci: boolean;
  /** ONEJOB_CRASH_AT, `release.effect` or the like: for onejob's own tests, see CONTRIBUTING. */
  readonly crashAt: string | null;
  /** `$PATH`: where the tools of GPU vendors are looked for. */
  readonly path: string;
  /** ONEJOB_HOST_ROOT: a folder with a `sys`, `proc`, `kmsg` and `locks` of its own; for onejob's own tests, see CONTRIBUTING. */
  readonly hostRoot: string | null;
  readonly uid: number;
}

/** What the Docker CLI reads too; https://docs.docker.com/reference/cli/docker/#environment-variables */
export interface DockerEnvironment {
  /** DOCKER_HOST */
  readonly host: string | null;
  /** DOCKER_TLS_VERIFY: any value but the empty one, also `0`, turns it on, as in the Docker CLI. */
  readonly tlsVerify: boolean;
  /** DOCKER_CERT_PATH */
  readonly certPath: string | null;
  /** DOCKER_CONTEXT */
  readonly context: string | null;
  /** DOCKER_CONFIG, else `~/.docker`. */
  readonly config: string;
}

/** Facts about this host that need no inventory. */
export interface HostFacts {
  /** What `{host}` stands for. */
  readonly name: string;
  readonly cpus: number;
  /** bytes */
  readonly memory: number;
}

type Variables = Readonly<Record<string, string | undefined>>;

export function readEnvironment(variables: Variables = process.env, uid: number = process.getuid?.() ?? 0): Environment {
  const get = (name: string) => variables[name] || null;
  // The XDG specification: a relative path in one of its variables is invalid and must be ignored.
  const absolute = (name: string) => {
    const value = get(name);
    return value !== null && isAbsolute(value) ? value : null;
  };
  const home = get('HOME') ?? homedir();
  return Object.freeze({
    config: get('ONEJOB_CONFIG'),
    stateDir: get('ONEJOB_STATE_DIR'),
    socket: get('ONEJOB_SOCKET'),
    home,
    configHome: absolute('XDG_CONFIG_HOME') ?? join(home, '.config'),
    stateHome: absolute('XDG_STATE_HOME') ?? join(home, '.local', 'state'),
    runtimeDir: absolute('XDG_RUNTIME_DIR'),
    docker: Object.freeze({
      host: get('DOCKER_HOST'),
      tlsVerify: get('DOCKER_TLS_VERIFY') !== null,
      certPath: get('DOCKER_CERT_PATH'),
      context: get('DOCKER_CONTEXT'),
      config: get('DOCKER_CONFIG') ?? join(home, '.docker'),
    }),
    proxies: readProxies(variables),
    handedOn: handedOn(variables, process.cwd()),
    // https://no-color.org: present and not empty, whatever the value.
    noColor: get('NO_COLOR') !== null,
    forceColor: get('FORCE_COLOR') !== null && get('FORCE_COLOR') !== '0',
    ci: get('CI') !== null && get('CI') !== 'false',
    crashAt: get('ONEJOB_CRASH_AT'),
    path: get('PATH') ?? '/usr/local/bin:/usr/bin:/bin',
    hostRoot: absolute('ONEJOB_HOST_ROOT'),
    uid,
  });
}

export function readHost(): HostFacts {
  return Object.freeze({ name: shortHost(hostname()), cpus: availableParallelism(), memory: totalmem() });
}
