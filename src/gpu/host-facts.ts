/** What `doctor` checks on a host with GPUs apart from the devices. Unknown is null; without an NVIDIA card it runs no tool. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { attempt } from '../base/errors.ts';
import { readProcVersion } from './nvidia/values.ts';
import { type PciCard, readPci, readText } from './pci.ts';
import type { ToolRun, ToolRunner } from './run.ts';

export interface GpuHostFacts extends ToolFacts {
  readonly cards: readonly PciCard[] | null;
  /** How many NVSwitches the board has. */
  readonly switches: number;
  /** Modules of the running kernel. */
  readonly modules: ReadonlySet<string> | null;
  /** Version of NVIDIA's module; null when it is not loaded. */
  readonly module: string | null;
  /** `ID` and `ID_LIKE` of os-release. */
  readonly distribution: readonly string[];
  /** Whether there is an `nvidia-smi`. */
  readonly hasTool: boolean;
}

interface ToolFacts {
  readonly secureBoot: boolean | null;
  readonly toolkit: Toolkit;
  /** What `nvidia-container-cli` finds; null where it is missing. */
  readonly cli: { readonly driver: string | null; readonly failure: string | null } | null;
  /** Whether the unit is active. */
  readonly persistenced: boolean | null;
  readonly fabricManager: FabricManager;
  /** Whether unattended upgrades may replace the driver under running jobs: `open` are such packages. null without APT. */
  readonly apt: { readonly unattended: boolean; readonly open: readonly string[] } | null;
}

interface FabricManager {
  readonly active: boolean | null;
  readonly version: string | null;
}

/** NVIDIA's container toolkit. `version`: null for one that does not report it, from before `nvidia-ctk`. */
type Toolkit = { readonly kind: 'missing' } | { readonly kind: 'there'; readonly version: string | null };

interface HostFactsOptions {
  readonly runner: ToolRunner;
  /** `/sys`, `/proc` and `/etc`; a test has its own. */
  readonly sys?: string;
  readonly proc?: string;
  readonly etc?: string;
  /** ms for one tool; default 10,000. */
  readonly limit?: number;
  readonly signal?: AbortSignal;
}

export async function readHostFacts(options: HostFactsOptions): Promise<GpuHostFacts> {
  const { runner, sys = '/sys', proc = '/proc', etc = '/etc', limit = 10_000, signal } = options;
  const run = (tool: string, ...args: string[]) => runner.run(tool, args, { limit, ...(signal && { signal }) });
  const has = async (tool: string) => (await runner.find(tool)) !== null;
  const [cards, switches, modules, procVersion, distribution, hasTool] = await Promise.all([
    readPci(sys),
    countSwitches(sys),
    readModules(proc),
    readText(join(proc, 'driver/nvidia/version')),
    readDistribution(etc),
    has('nvidia-smi'),
  ]);
  const module = procVersion === null ? null : readProcVersion(procVersion);
  const isNvidia = cards === null || hasTool || cards.some((card) => card.vendor === 'nvidia');
  const tools = isNvidia ? await queryTools(run, has, sys, switches) : nothingAsked;
  return { cards, switches, modules, module, distribution, hasTool, ...tools };
}

async function queryTools(
  run: ToolRun,
  has: (tool: string) => Promise<boolean>,
  sys: string,
  switches: number,
): Promise<ToolFacts> {
  const [secureBoot, toolkit, cli, persistenced, fabricManager, apt] = await Promise.all([
    readSecureBoot(sys, run),
    readToolkit(run, has),
    readCli(run),
    isActive('nvidia-persistenced', run),
    // Only boards with NVSwitches need it.
    switches === 0 ? noFabric : readFabricManager(run),
    readApt(run, has),
  ]);
  return { secureBoot, toolkit, cli, persistenced, fabricManager, apt };
}

const noFabric: FabricManager = { active: null, version: null };
const nothingAsked: ToolFacts = {
  secureBoot: null,
  toolkit: { kind: 'missing' },
  cli: null,
  persistenced: null,
  fabricManager: noFabric,
  apt: null,
};

/** PCI class 0680, "other bridge", of NVIDIA's: an NVSwitch. */
async function countSwitches(sys: string): Promise<number> {
  const folder = join(sys, 'bus/pci/devices');
  const names = await readdir(folder).catch((): string[] => []);
  const isSwitch = async (name: string): Promise<boolean> => {
    const kind = await readText(join(folder, name, 'class'));
    return kind?.startsWith('0x0680') === true && (await readText(join(folder, name, 'vendor'))) === '0x10de';
  };
  return (await Promise.all(names.map(isSwitch))).filter(Boolean).length;
}

/** The first word of each line of /proc/modules (proc(5)). */
async function readModules(proc: string): Promise<ReadonlySet<string> | null> {
  const text = await readText(join(proc, 'modules'));
  return text === null ? null : new Set(text.split('\n').map((line) => line.split(' ')[0] ?? ''));
}

async function readDistribution(etc: string): Promise<readonly string[]> {
  const text = (await readText(join(etc, 'os-release'))) ?? '';
  return [...text.matchAll(/^(?:ID|ID_LIKE)=["']?([a-z0-9._ -]{1,100})["']?\s*$/gm)].flatMap(([, words = '']) => words.split(' '));
}

/** The firmware's variable: four bytes of attributes, then 1 for on (UEFI specification, "Globally Defined Variables"). */
const secureBootVariable = 'SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c';

async function readSecureBoot(sys: string, run: ToolRun): Promise<boolean | null> {
  const efi = join(sys, 'firmware/efi');
  const variable = await readFile(join(efi, 'efivars', secureBootVariable)).catch(() => null);
  if (variable !== null && variable.length === 5) return variable[4] === 1;
  const { output } = await run('mokutil', '--sb-state');
  if (/^SecureBoot enabled/m.test(output)) return true;
  return /^SecureBoot disabled|EFI variables are not supported/m.test(output) ? false : null;
}

async function readToolkit(run: ToolRun, has: (tool: string) => Promise<boolean>): Promise<Toolkit> {
  const reply = await run('nvidia-ctk', '--version');
  // "NVIDIA Container Toolkit CLI version 1.17.8", then the commit.
  if (!reply.missing) return { kind: 'there', version: /\bversion v?(\d+\.\d+\.\d+)/i.exec(reply.output)?.[1] ?? null };
  const older = await Promise.all(['nvidia-container-runtime-hook', 'nvidia-container-toolkit', 'nvidia-container-cli'].map(has));
  return older.some(Boolean) ? { kind: 'there', version: null } : { kind: 'missing' };
}

/** The driver that `nvidia-container-cli info` finds, as a container's hook does; else why it failed, in its own words. */
async function readCli(run: ToolRun): Promise<ToolFacts['cli']> {
  const reply = await run('nvidia-container-cli', 'info');
  if (reply.missing) return null;
  if (reply.hung) return { driver: null, failure: 'it timed out' };
  const driver = /^NVRM version:\s*(\d{1,4}(?:\.\d{1,4}){1,3})\s*$/m.exec(reply.output)?.[1] ?? null;
  if (reply.code === 0) return { driver, failure: null };
  // "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch".
  const lines = reply.output.split('\n').map((line) => line.trim());
  const line = lines.findLast((line) => /error|failed/i.test(line)) ?? lines.findLast((line) => line !== '') ?? '';
  const failure = line.replace(/^nvidia-container-cli: /, '').replace(/\.$/, '');
  return { driver, failure: failure.slice(0, 200) || `it ended with exit code ${reply.code}` };
}

/** null where it is unknown: without systemd, or where it does not answer. */
async function isActive(unit: string, run: ToolRun): Promise<boolean | null> {
  const { output } = await run('systemctl', 'is-active', unit);
  const state = /^(active|inactive|failed|unknown|activating|deactivating|reloading|maintenance)$/m.exec(output)?.[1];
  return state === undefined ? null : state === 'active' || state === 'reloading';
}

async function readFabricManager(run: ToolRun): Promise<FabricManager> {
  const [active, reply] = await Promise.all([isActive('nvidia-fabricmanager', run), run('nv-fabricmanager', '--version')]);
  return { active, version: reply.missing ? null : (/\b(\d{3,4}\.\d+(?:\.\d+)?)\b/.exec(reply.output)?.[1] ?? null) };
}

/** The driver itself, its libraries and modules; not the container toolkit, settings or CUDA. */
const ofDriver =
  /^(?:libnvidia-(?:compute|ml|cfg|common|gpucomp)|libcuda1|nvidia-(?:driver|kernel|dkms|open|utils|compute-utils|headless|smi|modprobe|firmware)|linux-(?:modules|objects|signatures)-nvidia|cuda-drivers)/;

async function readApt(run: ToolRun, has: (tool: string) => Promise<boolean>): Promise<ToolFacts['apt']> {
  const [hasApt, hasUpgrades] = await Promise.all([has('apt-config'), has('unattended-upgrade')]);
  if (!hasApt) return null;
  const [config, holds, packages] = await Promise.all([
    run('apt-config', 'dump'),
    run('apt-mark', 'showhold'),
    // It exits with 1 when a pattern matches nothing, and lists what matches the others.
    run('dpkg-query', '-W', '-f', '${db:Status-Status} ${Package}\\n', '*nvidia*', 'libcuda1', 'cuda-drivers*'),
  ]);
  if (config.code !== 0 || packages.hung) return null;
  const held = new Set(holds.output.split('\n').map((line) => line.trim()));
  const exceptions = exceptionsIn(config.output);
  const kept = (name: string) => held.has(name) || exceptions.some((one) => one.test(name));
  const installed = [...packages.output.matchAll(/^installed (\S{1,200})$/gm)].map(([, name = '']) => name);
  return {
    unattended: hasUpgrades && isOn(config.output),
    open: [...new Set(installed)].filter((name) => ofDriver.test(name) && !kept(name)),
  };
}

function isOn(config: string): boolean {
  const value = /^APT::Periodic::Unattended-Upgrade "([^"]*)";$/m.exec(config)?.[1] ?? '0';
  return value !== '' && value !== '0' && value.toLowerCase() !== 'false';
}

/** `Unattended-Upgrade::Package-Blacklist:: "nvidia-";`: how a name begins, without regular expressions that only Python knows. */
function exceptionsIn(config: string): RegExp[] {
  const texts = config.matchAll(/^Unattended-Upgrade::Package-Blacklist::\S* "([^"\n]{1,200})";$/gm);
  return [...texts].flatMap(([, text = '']) => attempt(() => new RegExp(`^(?:${text})`)) ?? []);
}

/** What an Engine says that grants devices. */
export interface EngineFacts {
  readonly version: string;
  /** `systemd` or `cgroupfs`, as the Engine reports it. */
  readonly cgroupDriver: string | null;
  /** How onejob would ask it for NVIDIA devices; null when it cannot. */
  readonly way: 'request' | 'cdi' | 'runtime' | null;
}
