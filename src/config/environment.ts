/** The only reader of the environment, apart from `src/secrets`. Read once at the start, and passed on. */
import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { attempt } from '../base/errors.ts';
import { handedOn, readProxies } from '../http/proxies.ts';

/** Absent and empty variables are both null. */
export type Environment = ReturnType<typeof readEnvironment>;
/** As the Docker CLI reads it; https://docs.docker.com/reference/cli/docker/#environment-variables */
export type DockerEnvironment = Environment['docker'];

/** Those that matter to a command, in the words of Node. */
const ignorable = ['SIGHUP', 'SIGINT', 'SIGTERM', 'SIGPIPE'] as const;

/** Signals that the caller ignores. */
export function ignoredSignals({ ONEJOB_IGNORED: names = '' }: Variables) {
  return ignorable.filter((name) => names.split(' ').includes(name));
}

/** A variable as the caller has set it. `bin/onejob` renames those that would change how Node runs. */
export function callersOwn(variables: Variables, name: string): string | undefined {
  return variables[name] ?? variables[`ONEJOB_CALLER_${name}`];
}

type Variables = Readonly<Record<string, string | undefined>>;

export function readEnvironment(
  variables: Variables = process.env,
  uid: number = process.getuid?.() ?? 0,
  pid: number = process.pid,
) {
  const get = (name: string) => variables[name] || null;
  // The XDG specification: a relative path is invalid and must be ignored.
  const absolute = (name: string) => {
    const value = get(name);
    return value !== null && isAbsolute(value) ? value : null;
  };
  // A user without an entry in passwd has none, as in many containers.
  const home = get('HOME') ?? attempt(homedir) ?? '/';
  const socket = get('NOTIFY_SOCKET');
  return Object.freeze({
    config: get('ONEJOB_CONFIG'),
    stateDir: get('ONEJOB_STATE_DIR'),
    socket: get('ONEJOB_SOCKET'),
    /** The host whose daemon commands use; null: this one. */
    host: get('ONEJOB_HOST'),
    home,
    /** `$XDG_CONFIG_HOME`, else `~/.config`. */
    configHome: absolute('XDG_CONFIG_HOME') ?? join(home, '.config'),
    /** `$XDG_CACHE_HOME`, else `~/.cache`. */
    cacheHome: absolute('XDG_CACHE_HOME') ?? join(home, '.cache'),
    /** `$XDG_STATE_HOME`, else `~/.local/state`. */
    stateHome: absolute('XDG_STATE_HOME') ?? join(home, '.local', 'state'),
    runtimeDir: absolute('XDG_RUNTIME_DIR'),
    docker: Object.freeze({
      host: get('DOCKER_HOST'),
      /** Any value but the empty one, even `0`, enables it, as in the Docker CLI. */
      tlsVerify: get('DOCKER_TLS_VERIFY') !== null,
      certPath: get('DOCKER_CERT_PATH'),
      context: get('DOCKER_CONTEXT'),
      config: get('DOCKER_CONFIG') ?? join(home, '.docker'),
      /** Where sockets of rootless Engines are. */
      runtimeDir: absolute('XDG_RUNTIME_DIR'),
    }),
    /** Whether a browser can show something here. */
    hasDisplay: get('DISPLAY') !== null || get('WAYLAND_DISPLAY') !== null,
    proxies: readProxies(variables),
    /** Environment of onejob's own processes that call services. Its values can be secret. */
    handedOn: handedOn(variables, process.cwd()),
    // https://no-color.org: present and not empty, whatever the value.
    noColor: get('NO_COLOR') !== null,
    forceColor: get('FORCE_COLOR') !== null && get('FORCE_COLOR') !== '0',
    /** Whether the terminal obeys no escape sequences, as in an editor. */
    isDumb: get('TERM') === 'dumb',
    /** `release.effect` or the like: for onejob's own tests, see CONTRIBUTING. */
    crashAt: get('ONEJOB_CRASH_AT'),
    /** Where to find the tools of GPU vendors. */
    path: get('PATH') ?? '/usr/local/bin:/usr/bin:/bin',
    /** A folder with a `sys`, `proc`, `kmsg` and `locks` of its own: for onejob's own tests, see CONTRIBUTING. */
    hostRoot: absolute('ONEJOB_HOST_ROOT'),
    uid,
    /** Signals that the caller ignores, which Node sets back; `bin/onejob` finds them. */
    ignored: ignoredSignals(variables),
    /** Descriptors of sockets that the service manager has opened for this process; sd_listen_fds(3). */
    sockets: Object.freeze(get('LISTEN_PID') === String(pid) ? inherited(Number(get('LISTEN_FDS'))) : []),
    /** Set if systemd started this process and expects messages from it. `watchdog`: its timeout in ms, or null. */
    serviceManager: socket === null ? null : { socket, watchdog: Number(get('WATCHDOG_USEC')) / 1000 || null },
  });
}

function inherited(count: number): number[] {
  return Number.isInteger(count) && count > 0 && count < 100 ? Array.from({ length: count }, (_, at) => 3 + at) : [];
}
