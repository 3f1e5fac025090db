/**
 * Whether unattended upgrades of Debian and Ubuntu may exchange the driver under running jobs: the library is new then, the
 * module that is loaded is old, and no container gets a GPU until a reboot.
 */
import type { Run } from './run.ts';

export interface Apt {
  /** Whether upgrades are made without anybody asking. */
  readonly unattended: boolean;
  /** Packages of the driver that are installed, and may be exchanged: neither held back nor on the list of exceptions. */
  readonly open: readonly string[];
}

/** The driver itself, its libraries and modules; not the container toolkit, settings or CUDA. */
const ofDriver =
  /^(?:libnvidia-(?:compute|ml|cfg|common|gpucomp)|libcuda1|nvidia-(?:driver|kernel|dkms|open|utils|compute-utils|headless|smi|modprobe|firmware)|linux-(?:modules|objects|signatures)-nvidia|cuda-drivers)/;

/** null where there is no APT, or it does not answer. */
export async function readApt(run: Run, has: (tool: string) => Promise<boolean>): Promise<Apt | null> {
  const [hasApt, hasUpgrades] = await Promise.all([has('apt-config'), has('unattended-upgrade')]);
  if (!hasApt) return null;
  const [config, holds, packages] = await Promise.all([
    run('apt-config', 'dump'),
    run('apt-mark', 'showhold'),
    // It ends with 1 when a pattern fits nothing, and lists what fits the others.
    run('dpkg-query', '-W', '-f', '${db:Status-Status} ${Package}\\n', '*nvidia*', 'libcuda1', 'cuda-drivers*'),
  ]);
  if (config.code !== 0 || packages.hung) return null;
  const held = new Set(holds.output.split('\n').map((line) => line.trim()));
  const exceptions = exceptionsIn(config.output);
  const installed = [...packages.output.matchAll(/^installed (\S{1,200})$/gm)].map(([, name = '']) => name);
  return {
    unattended: hasUpgrades && isOn(config.output),
    open: [...new Set(installed)].filter(
      (name) => ofDriver.test(name) && !held.has(name) && !exceptions.some((one) => one.test(name)),
    ),
  };
}

function isOn(config: string): boolean {
  const value = /^APT::Periodic::Unattended-Upgrade "([^"]*)";$/m.exec(config)?.[1] ?? '0';
  return value !== '' && value !== '0' && value.toLowerCase() !== 'false';
}

/** `Unattended-Upgrade::Package-Blacklist:: "nvidia-";`: regular expressions that a name begins with. */
function exceptionsIn(config: string): RegExp[] {
  return [...config.matchAll(/^Unattended-Upgrade::Package-Blacklist::\S* "([^"\n]{1,200})";$/gm)].flatMap(([, text = '']) => {
    try {
      return [new RegExp(`^(?:${text})`)];
    } catch {
      // Python's, and not ours.
      return [];
    }
  });
}
