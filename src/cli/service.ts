/**
 * `onejob service`: the unit of systemd that runs the daemon, and the versions that are installed. `install.sh` of a release puts
 * each version into a folder of its own; the link `current` names the one that runs, `previous` the one before it.
 */

import { existsSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, rmdir } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { attempt, messageOf, OnejobError } from '../base/errors.ts';
import { listensOf } from '../config/listens.ts';
import { sharedFolder } from '../config/paths.ts';
import type { Listen } from '../http/address.ts';
import { addressText } from '../http/listen.ts';
import { installProfile, removeProfile } from '../runtimes/docker/apparmor.ts';
import { daemonGroup } from '../runtimes/process/cgroup.ts';
import { syncFolder, writeWhole } from '../system/files.ts';
import { removeTree } from '../system/foreign-tree.ts';
import { run } from '../system/run.ts';
import { exitCodes } from './exit.ts';
import { checkedArchive, upgradeKey } from './release-archive.ts';
import type { ServiceFacts } from './service-config.ts';
import { configSource, type Session } from './session.ts';
import { types } from './types.ts';

export type Flags = { readonly user?: boolean; readonly print?: boolean };

/** ms that systemctl may take; a start waits until the daemon is ready, a stop until it has left its agents. */
const patience = 180_000;

const problem = (message: string, hint?: string) => new OnejobError('E_SERVICE', message, { hint });

/** Where this onejob is, and what its unit is called. */
function installation({ context, flags: given }: Pick<Session, 'context' | 'flags'>, { user = false }: Flags) {
  const { environment } = context;
  const root = join(import.meta.dirname, '..', '..');
  const versions = dirname(root);
  const linked = (name: string) => attempt(() => readlinkSync(join(versions, name)));
  const isRelease = linked('current') !== null;
  return {
    root,
    user,
    isRelease,
    versions,
    linked,
    /** Of this command line, for the daemon. */
    flags: Object.entries({ '--config': given.config, '--state-dir': given.stateDir, '--socket': given.socket }).flatMap(
      ([flag, path]) => (path === undefined ? [] : [flag, path]),
    ),
    /** The same path for every version, so that the unit outlives an upgrade. */
    program: join(isRelease ? join(versions, 'current') : root, 'bin', 'onejob'),
    /** What starts it. */
    target: user ? 'default.target' : 'multi-user.target',
    unit: join(user ? join(environment.configHome, 'systemd', 'user') : '/etc/systemd/system', 'onejob.service'),
    socketUnit: join(user ? join(environment.configHome, 'systemd', 'user') : '/etc/systemd/system', 'onejob.socket'),
    systemctl: async (...args: string[]) => {
      const words = [...(user ? ['--user'] : []), ...args];
      const ended = await run('systemctl', words, { timeout: patience });
      const said = ended.code === 'ENOENT' ? 'systemctl is not installed' : ended.stderr.trim() || `it ended with ${ended.code}`;
      return { stdout: ended.stdout.toString(), failure: ended.error === null ? null : `systemctl ${words.join(' ')}: ${said}` };
    },
  };
}

type Installation = ReturnType<typeof installation>;

export interface Starting {
  /** A clone changes under a running daemon, so it has no service. */
  readonly isClone: boolean;
  readonly hasSystemd: boolean;
  readonly hasUnit: boolean;
  readonly user: boolean;
  /** Path of a config that the service would not find by itself; null for one that it finds. */
  readonly config: string | null;
}

type WayToStart = readonly [command: string, does: string];

/** What to type so that a daemon has a config that was just written, and what that does. */
export function waysToStart({ isClone, hasSystemd, hasUnit, user, config }: Starting): WayToStart {
  const named = config === null ? '' : ` --config ${config}`;
  if (isClone || !hasSystemd) return [`onejob up${named}`, 'run the daemon in the foreground'];
  // The unit that is there may name another config.
  if (hasUnit && config === null) return ['onejob config apply', 'have the running daemon take the config'];
  return [`onejob service install${user ? ' --user' : ''}${named}`, 'run the daemon as a service'];
}

/** `waysToStart` for this onejob. */
export function howToStart(session: Session): WayToStart {
  const { environment } = session.context;
  const user = environment.uid !== 0;
  const { root, unit } = installation(session, { user });
  return waysToStart({
    isClone: existsSync(join(root, 'src', 'main.ts')),
    // https://www.freedesktop.org/software/systemd/man/latest/sd_booted.html
    hasSystemd: existsSync('/run/systemd/system'),
    hasUnit: existsSync(unit),
    user,
    config: session.flags.config ?? environment.config,
  });
}

/** What to type next on a host where a release is installed and no service is; null elsewhere. */
export function nextStep({ isRelease, hasSystemd, hasUnit, uid, isOwn }: Next): string | null {
  if (!isRelease || !hasSystemd || hasUnit) return null;
  return `${uid === 0 || isOwn ? '' : 'sudo '}onejob service install${uid !== 0 && isOwn ? ' --user' : ''}`;
}

interface Next {
  readonly isRelease: boolean;
  readonly hasSystemd: boolean;
  /** Of the system, or of this user. */
  readonly hasUnit: boolean;
  readonly uid: number;
  /** Whether the release is in a folder of this user. */
  readonly isOwn: boolean;
}

/** `nextStep` for this onejob. */
export function nextStepHere(context: Session['context']): string | null {
  const { uid } = context.environment;
  const [own, system] = [true, false].map((user) => installation({ context, flags: {} }, { user }));
  return nextStep({
    isRelease: own?.isRelease === true,
    hasSystemd: existsSync('/run/systemd/system'),
    hasUnit: [own, system].some((one) => one !== undefined && existsSync(one.unit)),
    uid,
    isOwn: uid !== 0 && attempt(() => statSync(own?.root ?? '').uid) === uid,
  });
}

/** A word as a unit quotes it: `%` and `$` have a meaning there, too. */
function word(text: string): string {
  const plain = text.replaceAll('%', '%%').replaceAll('$', '$$$$');
  return /^[\w./:=+-]+$/.test(plain) ? plain : `"${plain.replaceAll(/["\\]/g, '\\$&')}"`;
}

/** The unit. Devices, namespaces, limits and umask stay as they are: jobs on the process runtime inherit what a unit changes. */
function unitText({ program, user, target, isRelease, flags }: Installation, hasPorts: boolean): string {
  const command = (...words: string[]) => [program, ...words, ...flags].map(word).join(' ');
  const path = `${isRelease ? '' : `${dirname(process.execPath)}:`}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`;
  const hardening = `
StateDirectory=onejob
StateDirectoryMode=0700
RuntimeDirectory=onejob
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
ProtectSystem=full
RestrictRealtime=yes
LockPersonality=yes
CapabilityBoundingSet=~CAP_SYS_BOOT CAP_SYS_TIME CAP_SYS_MODULE CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_WAKE_ALARM CAP_LINUX_IMMUTABLE CAP_SYS_PACCT CAP_BLOCK_SUSPEND`;
  return `# Written by "onejob service install". Put changes into a drop-in: systemctl ${user ? '--user ' : ''}edit onejob
[Unit]
Description=onejob, fresh single-use CI agents
${user ? '' : 'Wants=network-online.target\nAfter=network-online.target docker.service podman.socket\n'}${!hasPorts ? '' : 'Wants=onejob.socket\nAfter=onejob.socket\n'}StartLimitIntervalSec=0

[Service]
Type=notify
${user ? userNotify : 'NotifyAccess=main'}
Environment=${word(`PATH=${path}`)}
# A stop leaves running jobs to the next daemon, which adopts their agents.
ExecStart=${command('up', '--on-stop', 'leave')}
ExecReload=${command('config', 'apply')}
KillMode=process
Restart=on-failure
RestartSec=5s
TimeoutStartSec=2min
TimeoutStopSec=1min
WatchdogSec=3min
OOMPolicy=continue
TasksMax=infinity
NoNewPrivileges=yes${user ? userGroups : hardening}

[Install]
WantedBy=${target}
`;
}

/**
 * The ports that the config names, which stay open while the daemon restarts, so that no other program can take them meanwhile. They
 * close when the service stops for good: otherwise a browser that connects again would start a daemon that somebody has ended.
 */
function socketText({ user }: Installation, listens: readonly Listen[]): string {
  const streams = listens.map(
    ({ host, port }) => `ListenStream=${addressText({ host: host === 'localhost' ? '127.0.0.1' : host, port })}`,
  );
  return `# Written by "onejob service install" for the ports of the config, such as "api.listen".
[Unit]
Description=onejob, its ports while the daemon restarts
${user ? '' : 'Wants=network-online.target\nAfter=network-online.target\n'}StopWhenUnneeded=yes

[Socket]
${streams.join('\n')}
BindIPv6Only=ipv6-only
FileDescriptorName=api
`;
}

/** Root makes the groups of agents elsewhere. */
const userGroups = `
# Agents get groups of their own below this service, which limit memory, CPUs and processes. systemd before 254 ignores the last line:
# then there are no such limits.
Delegate=cpu memory pids
DelegateSubgroup=${daemonGroup}`;

/** systemd-notify speaks for the daemon only as root. */
const userNotify = `# Only root may send messages in the name of another process, as systemd-notify then does for the daemon.
NotifyAccess=all`;

/** Where the daemon listens, as the config of the service says; empty: nowhere, or the config is invalid, which the daemon reports. */
async function listensHere(session: Session): Promise<readonly Listen[]> {
  const { loadConfig } = await import('../config/load.ts');
  const loaded = await loadConfig({ types, ...configSource(session), look: null }).catch(() => null);
  return loaded === null ? [] : listensOf(loaded.config);
}

/** systemd starts nothing from an empty unit, which a power cut would leave. @throws OnejobError E_SERVICE */
function writeUnit(path: string, text: string): void {
  try {
    writeWhole(path, text, { over: true, mode: 0o644 });
  } catch (error) {
    throw problem(`Cannot write ${path}: ${messageOf(error)}.`);
  }
}

/** Stops what has a port, if it is not the one that the unit names by now: systemd opens none for a service that runs. */
async function renewSocket(here: Installation, text: string | null): Promise<void> {
  const before = attempt(() => readFileSync(here.socketUnit, 'utf8'));
  if (before === text) return;
  if (existsSync(here.unit)) await here.systemctl('stop', 'onejob', ...(before === null ? [] : ['onejob.socket']));
  if (text === null) await rm(here.socketUnit, { force: true });
  else writeUnit(here.socketUnit, text);
}

export async function installService(session: Session, flags: Flags): Promise<number> {
  const here = installation(session, flags);
  const { output } = session;
  const listens = await listensHere(session);
  const text = unitText(here, listens.length > 0);
  const socket = listens.length === 0 ? null : socketText(here, listens);
  if (flags.print === true) {
    const more = socket === null ? {} : { socketPath: here.socketUnit, socket };
    await output.result({ path: here.unit, unit: text, ...more }, () => [
      text.trimEnd(),
      ...(socket === null ? [] : ['', `# ${here.socketUnit}`, socket.trimEnd()]),
    ]);
    return exitCodes.ok;
  }
  if (existsSync(join(here.root, 'src', 'main.ts'))) {
    const hint = 'Make a release with "npm run release" and install that, or start the daemon with "onejob up".';
    throw problem(`Cannot install a service from ${here.root}: it is a clone, which changes under a running daemon.`, hint);
  }
  needRoot(session, here, 'install');
  await mkdir(dirname(here.unit), { recursive: true });
  await renewSocket(here, socket);
  writeUnit(here.unit, text);
  // Without it, systemd ends a user's services when the last session of the user closes.
  if (here.user) await linger(session);
  else await loadProfile(session);
  await must(here.systemctl('daemon-reload'));
  await must(here.systemctl('enable', 'onejob'));
  // systemd's link, which starts the daemon at the next boot.
  attempt(() => syncFolder(join(dirname(here.unit), `${here.target}.wants`)));
  await start(session, here);
  await output.result({ installed: here.unit }, () => [`Installed ${here.unit}, and started the daemon.`]);
  return exitCodes.ok;
}

/** Lets the service outlive the logout of its user, or says why it will not. */
async function linger({ context, output }: Session): Promise<void> {
  const uid = `${context.environment.uid}`;
  const { error, stderr } = await run('loginctl', ['enable-linger']);
  if (error === null) return;
  // Without a seat polkit refuses even what is so already.
  const { stdout } = await run('loginctl', ['show-user', uid, '-p', 'Linger', '--value']);
  if (stdout.toString().trim() === 'yes') return;
  output.say(`the service will stop when you log out (${stderr.trim()}): as root, type "loginctl enable-linger ${uid}"`);
}

/** Lets engines of agents make namespaces where AppArmor knows such a rule, or says why they will not; AppArmor loads it at each boot. */
async function loadProfile({ output }: Session): Promise<void> {
  if (!existsSync('/sys/kernel/security/apparmor') || !existsSync('/etc/apparmor.d/abi/4.0')) return;
  const said = await installProfile(async (path) => {
    const { error, stderr } = await run('apparmor_parser', ['--replace', path], { timeout: patience });
    return error === null ? null : `apparmor_parser: ${stderr.trim() || error.message}`;
  });
  if (said !== null) output.say(`pools may be unable to use "containers" where AppArmor forbids it: ${said}`);
}

export async function uninstallService(session: Session, flags: Flags): Promise<number> {
  const here = installation(session, flags);
  if (!existsSync(here.unit)) throw problem(`There is no service to remove: ${here.unit} does not exist.`);
  needRoot(session, here, 'uninstall');
  await must(here.systemctl('disable', '--now', 'onejob'));
  if (existsSync(here.socketUnit)) await here.systemctl('stop', 'onejob.socket');
  await rm(here.socketUnit, { force: true });
  await rm(here.unit);
  if (!here.user) removeProfile();
  // The unit made it for the daemon. Agents that continue may have something there.
  const { runtimeDir } = session.context.environment;
  await rmdir(here.user && runtimeDir !== null ? join(runtimeDir, 'onejob') : sharedFolder).catch(() => {});
  syncFolder(dirname(here.unit));
  await must(here.systemctl('daemon-reload'));
  const text = `Stopped the daemon and removed ${here.unit}. Running jobs continue; "onejob up" adopts them.`;
  await session.output.result({ uninstalled: here.unit }, () => [text]);
  return exitCodes.ok;
}

export async function serviceStatus(session: Session, flags: Flags): Promise<number> {
  const here = installation(session, flags);
  const keys = 'ActiveState,SubState,UnitFileState,MainPID,NRestarts,ActiveEnterTimestamp';
  const { stdout, failure } = await here.systemctl('show', 'onejob', `--property=${keys}`);
  if (failure !== null) throw problem(`Cannot ask systemd for the service: ${failure}.`);
  const found = new Map(stdout.split('\n').map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]));
  const get = (key: string) => found.get(key) || null;
  const [active, previous] = [get('ActiveState') === 'active', here.linked('previous')];
  const unit = existsSync(here.unit) ? here.unit : null;
  const state = { unit, active, state: `${get('ActiveState')} (${get('SubState')})`, enabled: get('UnitFileState') === 'enabled' };
  const more = { pid: Number(get('MainPID')) || null, restarts: Number(get('NRestarts')), since: get('ActiveEnterTimestamp') };
  const version = here.linked('current') ?? session.version;
  await session.output.result({ ...state, ...more, version, previous }, () => [
    unit === null ? 'not installed: type "onejob service install"' : `${state.state}${active ? ` since ${more.since}` : ''}`,
    ...(unit === null ? [] : [`unit      ${unit}${state.enabled ? '' : ' (not enabled at boot)'}`]),
    ...(active ? [`process   ${more.pid}, restarted ${more.restarts} times`] : []),
    `version   ${version}${previous === null ? '' : `, previous ${previous}`}`,
  ]);
  return active ? exitCodes.ok : exitCodes.failed;
}

export async function upgradeService(session: Session, archive: string | null, flags: Flags): Promise<number> {
  const here = installation(session, flags);
  needRoot(session, here, 'upgrade');
  const [before, earlier] = [here.linked('current'), here.linked('previous')];
  if (archive !== null && !here.isRelease) throw notOfRelease();
  await needSystemd(here);
  if (archive !== null) await installRelease(session, here, resolve(session.context.cwd, archive));
  const after = here.linked('current') ?? session.version;
  await restartOr(session, here, before === after ? null : before, earlier);
  await session.output.result({ upgraded: after, previous: before }, () => [`The daemon runs version ${after} now.`]);
  return exitCodes.ok;
}

export async function rollBackService(session: Session, flags: Flags): Promise<number> {
  const here = installation(session, flags);
  const [now, back] = [here.linked('current'), here.linked('previous')];
  if (now === null || back === null || !existsSync(join(here.versions, back)))
    throw problem(`Cannot roll back: no previous version is installed in ${here.versions}.`);
  needRoot(session, here, 'rollback');
  await needSystemd(here);
  await install(here, join(here.versions, back));
  await restartOr(session, here, now, back);
  await session.output.result({ upgraded: back, previous: now }, () => [`The daemon runs version ${back} again.`]);
  return exitCodes.ok;
}

/** What systemd says about the service, drop-ins included. @throws OnejobError E_SERVICE where it does not answer */
async function factsOf({ systemctl }: Installation): Promise<ServiceFacts> {
  const said = async (...args: string[]) => {
    const { stdout, failure } = await systemctl(...args);
    if (failure !== null) throw problem(`Cannot ask systemd which config the service reads: ${failure}. Nothing was changed.`);
    return stdout;
  };
  const shown = await said('show', 'onejob', '--property=MainPID,LoadState');
  const pid = Number(/^MainPID=(\d+)$/m.exec(shown)?.[1] ?? 0);
  return {
    pid: pid > 0 ? pid : null,
    unit: /^LoadState=not-found$/m.test(shown) ? '' : await said('cat', 'onejob'),
    environment: await said('show-environment'),
  };
}

/** Unpacks a release next to the installed ones, so that nothing that runs changes, and runs its installer. */
async function installRelease(session: Session, here: Installation, archive: string): Promise<void> {
  const { output } = session;
  const { versions } = here;
  const bytes = checkedArchive(archive, await upgradeKey(session, await factsOf(here)), output.say);
  const work = await mkdtemp(join(versions, '.unpacked-'));
  try {
    output.progress(`unpacking ${basename(archive)}`);
    // The bytes that were checked: the file may have changed since.
    const unpacked = await run('tar', ['-xz', '-C', work, '--no-same-owner', '--no-same-permissions'], { input: bytes });
    const [folder] = await readdir(work);
    if (unpacked.error !== null || folder === undefined || !existsSync(join(work, folder, 'install.sh')))
      throw problem(`${archive} is not a release of onejob. ${unpacked.stderr.trim()}`.trim());
    await install(here, join(work, folder));
  } finally {
    output.progress(null);
    await removeTree(work);
  }
}

/** Restarts the daemon. If that fails, `back` is started again, unless it is null; `previous` is as it was. */
async function restartOr(session: Session, here: Installation, back: string | null, previous: string | null): Promise<void> {
  try {
    await start(session, here);
  } catch (error) {
    const failed = here.linked('current');
    if (back === null || failed === null) throw error;
    const reason = messageOf(error);
    for (const version of [previous, back]) if (version !== null) await install(here, join(here.versions, version));
    await start(session, here).catch((second) => {
      throw problem(`Version ${failed} did not start, and neither did ${back} then. ${reason}\n${messageOf(second)}`);
    });
    throw problem(`Version ${failed} did not start, so the daemon runs ${back} again. ${reason}`);
  }
}

/** Runs the installer of a release, which makes it the current one. */
async function install({ versions, user }: Installation, release: string): Promise<void> {
  const { error, stderr } = await run('sh', [join(release, 'install.sh'), ...(user ? ['--user'] : []), '--versions', versions]);
  if (error !== null) throw problem(`Failed to install ${release}: ${stderr.trim() || error.message}.`);
}

/** Starts or restarts the daemon, and waits until it is ready. @throws OnejobError E_SERVICE with its last words */
async function start({ output }: Session, here: Installation): Promise<void> {
  output.progress('waiting until the daemon is ready');
  const { failure } = await here.systemctl('restart', 'onejob');
  output.progress(null);
  if (failure === null) return;
  // Otherwise systemd would try again every few seconds.
  await here.systemctl('stop', 'onejob');
  const words = ['-t', 'onejob', '-n', '12', '-o', 'cat', '--no-pager'];
  const { stdout } = await run('journalctl', here.user ? ['--user', ...words] : words);
  throw problem(
    `The daemon did not start. Its last messages:\n${stdout.toString().trim()}`,
    `See "journalctl ${here.user ? '--user ' : ''}-u onejob".`,
  );
}

async function must(asked: ReturnType<Installation['systemctl']>): Promise<void> {
  const { failure } = await asked;
  if (failure !== null) throw problem(`${failure}.`, 'Without a running systemd, start "onejob up" by hand.');
}

/** Before anything changes: a version that cannot be started would look like one that does not start. */
async function needSystemd(here: Installation): Promise<void> {
  await must(here.systemctl('show', '--property=Version'));
}

function notOfRelease(): OnejobError {
  const hint = 'Upgrade with what installed it (such as "npm install --global"), then type "onejob service upgrade".';
  return problem('Cannot install an archive: this onejob was not installed by install.sh of a release.', hint);
}

function needRoot({ context }: Session, { user, unit }: Installation, what: string): void {
  if (user || context.environment.uid === 0) return;
  throw problem(`Only root may change ${unit}.`, `Type "sudo onejob service ${what}", or add --user for your own service.`);
}
