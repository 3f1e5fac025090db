/**
 * A host with NVIDIA cards that nobody here has, changed by a test while onejob runs on it: its tool prints what the cards are
 * now, or acts out a bad day; its PCI bus, its device nodes (each is /dev/null in truth) and its kernel log follow.
 *
 *     using host = gpuHost([card(0), card(1)]);
 *     await using here = await onejob({ config: '…', env: host.env });
 *     host.change(0, { eccErrors: 2 });
 */
import { execFileSync } from 'node:child_process';
import {
  appendFileSync,
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir, uptime } from 'node:os';
import { join } from 'node:path';
import { emptyHost, plugIn } from './fake-tools/fake-tools.ts';
import { driver580, listText, queryXml, type StubDriver, type StubGpu, useText, versionText } from './gpu-cards.ts';

/**
 * What the tool does from its next call on. `hang` is deaf to TERM, `stuck` cannot even be killed (needs `canBeStuck`),
 * `half-xml` stops in the middle of the first card with exit code 0, `error-text` says that the first card does not answer and
 * exits 0 all the same. 9: no driver. 18: the driver was upgraded under its module.
 */
export type ToolMode = 'ok' | 'hang' | 'stuck' | 'half-xml' | 'error-text' | 'exit 9' | 'exit 18';

export interface GpuHost extends Disposable {
  readonly dir: string;
  /** For the environment of the daemon. */
  readonly env: Readonly<Record<string, string>>;
  /** As they are now, in the order in which the tool lists them. */
  readonly cards: readonly StubGpu[];
  /** Changes the card whose number was `n` at first. */
  change(n: number, more: Partial<StubGpu>): void;
  /** All of them anew, as after a reboot. */
  set(cards: readonly StubGpu[]): void;
  /** Off the bus and out of the list, and back. */
  unplug(n: number): void;
  plug(n: number): void;
  tool(mode: ToolMode): void;
  /** What NVIDIA's module prints to the kernel log, without `NVRM: `. */
  kernel(message: string): void;
  /** How often the tool was asked for everything so far. */
  readonly asked: number;
}

const freezer = '/sys/fs/cgroup/freezer';

/** Whether this kernel can keep a process where no signal ends it: a frozen group of version 1 does. */
export function canBeStuck(): boolean {
  return existsSync(join(freezer, 'cgroup.procs'));
}

export interface GpuHostOptions {
  readonly driver?: StubDriver;
  /** A folder that is there; default: one of its own. A host that was made in it before goes on. */
  readonly dir?: string;
  /** Lines of shell that reset the card "$3" of the host in a folder; default: the tool cannot. */
  readonly reset?: (dir: string) => string;
  /** Numbers of cards that are off the bus. */
  readonly away?: readonly number[];
}

export function gpuHost(first: readonly StubGpu[], options: GpuHostOptions = {}): GpuHost {
  const { driver = driver580, dir = mkdtempSync(join(tmpdir(), 'ojg-')), reset } = options;
  const sys = join(dir, 'sys');
  if (!existsSync(join(dir, 'said'))) makeHost(dir, driver);
  const group = join(freezer, dir.slice(dir.lastIndexOf('/') + 1));
  /** As a whole: the tool may be reading it. */
  const write = (path: string, text: string): void => {
    writeFileSync(join(dir, '.new'), text);
    renameSync(join(dir, '.new'), path);
  };
  let cards: StubGpu[] = [];
  const away = new Set((options.away ?? []).map((n) => first[n]?.uuid ?? ''));
  let records = 0;
  let turn = readdirSync(join(dir, 'said')).length;

  function publish(): void {
    const there = cards.filter((one) => !away.has(one.uuid));
    const listed = there.filter((one) => !one.isLost);
    const into = join(dir, 'said', String(turn++));
    mkdirSync(into);
    const xml = queryXml(listed, driver);
    writeFileSync(join(into, 'all.xml'), xml);
    writeFileSync(join(into, 'half.xml'), xml.slice(0, xml.indexOf('<fb_memory_usage>')));
    writeFileSync(join(into, 'list'), listText(listed));
    writeFileSync(join(into, 'use'), useText(listed));
    writeFileSync(join(into, 'first'), `0000${there[0]?.pciId ?? ''}`);
    for (const one of listed) writeFileSync(join(into, `${one.pciId}.xml`), queryXml([one], driver, listed.length));
    for (const one of cards) {
      const slot = join(sys, 'bus/pci/devices', one.pciId);
      if (away.has(one.uuid)) rmSync(slot, { recursive: true, force: true });
      else if (!existsSync(slot)) plugIn(sys, one.pciId, { vendor: '0x10de', driver: 'nvidia' });
      if (!existsSync(join(dir, 'dev', `nvidia${one.minor}`))) makeNode(dir, `nvidia${one.minor}`);
    }
    // A link is replaced in one step.
    symlinkSync(into, join(dir, '.now'));
    renameSync(join(dir, '.now'), join(dir, 'now'));
  }

  const tool = (mode: ToolMode): void => {
    write(join(dir, 'mode'), mode);
    thaw(group);
  };
  const uuidOf = (n: number): string => first[n]?.uuid ?? '';
  writeFileSync(join(dir, 'tools/nvidia-smi'), script(dir, group, reset?.(dir)), { mode: 0o755 });
  tool('ok');
  cards = [...first];
  publish();
  return {
    dir,
    env: { ONEJOB_HOST_ROOT: dir, PATH: `${join(dir, 'tools')}:${process.env.PATH}` },
    get cards() {
      return cards;
    },
    change(n, more) {
      cards = cards.map((one) => (one.uuid === uuidOf(n) ? { ...one, ...more } : one));
      publish();
    },
    set(anew) {
      for (const { pciId } of cards) rmSync(join(sys, 'bus/pci/devices', pciId), { recursive: true, force: true });
      cards = [...anew];
      publish();
    },
    unplug(n) {
      away.add(uuidOf(n));
      publish();
    },
    plug(n) {
      away.delete(uuidOf(n));
      publish();
    },
    tool,
    kernel(message) {
      records += 1;
      appendFileSync(join(dir, 'kmsg'), `4,${records},${Math.round(uptime() * 1e6)},-;NVRM: ${message}\n`);
    },
    get asked() {
      return readFileSync(join(dir, 'calls'), 'utf8')
        .split('\n')
        .filter((line) => line === '-q -x').length;
    },
    [Symbol.dispose]() {
      tool('ok');
      rmSync(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
    },
  };
}

/** A host without cards. */
function makeHost(dir: string, driver: StubDriver): void {
  // Agents run as users of their own and reach the nodes through here.
  chmodSync(dir, 0o755);
  const { proc } = emptyHost(dir);
  for (const name of ['dev', 'tools', 'said']) mkdirSync(join(dir, name));
  mkdirSync(join(proc, 'driver/nvidia'), { recursive: true });
  writeFileSync(join(proc, 'driver/nvidia/version'), versionText(driver));
  writeFileSync(join(dir, 'kmsg'), '');
  writeFileSync(join(dir, 'calls'), '');
  for (const name of ['nvidiactl', 'nvidia-uvm']) makeNode(dir, name);
}

function makeNode(dir: string, name: string): void {
  execFileSync('mknod', ['-m', '666', join(dir, 'dev', name), 'c', '1', '3']);
}

/** The tool: what it does is looked up at each call, what it prints lies ready. */
function script(dir: string, group: string, reset = ':'): string {
  return `#!/bin/sh
echo "$*" >>'${dir}/calls'
read -r mode <'${dir}/mode'
cd '${dir}/now' || exit 255
case "$mode" in
  ok) ;;
  hang) trap '' TERM INT HUP; while :; do sleep 60; done ;;
  stuck)
    mkdir -p '${group}' && echo $$ >'${group}/cgroup.procs' && echo FROZEN >'${group}/freezer.state'
    while :; do sleep 60; done ;;
  half-xml) cat half.xml; exit 0 ;;
  error-text) echo "Unable to determine the device handle for GPU$(cat first): Unknown Error"; exit 0 ;;
  'exit 9')
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."
    exit 9 ;;
  'exit 18') printf 'Failed to initialize NVML: Driver/library version mismatch\\nNVML library version: 590.44\\n'; exit 18 ;;
esac
case "$*" in
  '-q -x') exec cat all.xml ;;
  -L) exec cat list ;;
  --query-gpu=*) exec cat use ;;
  '-q -x -i '*)
    [ -e "$4.xml" ] && exec cat "$4.xml"
    echo "No devices were found"; exit 6 ;;
  '--gpu-reset -i '*) ${reset} ;;
esac
echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."
exit 2
`;
}

/** Lets go of anyone who is stuck: they were killed long ago. */
function thaw(group: string): void {
  if (!existsSync(group)) return;
  writeFileSync(join(group, 'freezer.state'), 'THAWED');
  for (const pid of readFileSync(join(group, 'cgroup.procs'), 'utf8').split('\n').filter(Boolean)) {
    try {
      process.kill(Number(pid), 'SIGKILL');
    } catch {
      // It has just ended.
    }
  }
  // The kernel lets a group go once the last of its processes is reaped.
  for (let attempt = 0; attempt < 100 && existsSync(group); attempt += 1) {
    try {
      rmdirSync(group);
    } catch {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
    }
  }
}
