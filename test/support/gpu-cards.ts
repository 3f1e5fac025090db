/**
 * Cards that exist only as data, and what NVIDIA's tool would print of them: `-q -x` with the elements that matter, `-L`, the
 * driver's own files. The form is that of the recordings of driver 580 in test/fixtures/gpu/nvidia-smi/xml.
 */

export interface StubProcess {
  readonly pid: number;
  readonly name?: string;
  readonly type?: 'C' | 'G' | 'C+G';
  /** null: the driver does not tell. */
  readonly memoryMiB?: number | null;
  readonly gpuInstance?: number;
  readonly computeInstance?: number;
}

export interface StubInstance {
  readonly uuid: string;
  /** As `-L` names it: `1g.10gb`. */
  readonly profile: string;
  readonly gpuInstance: number;
  readonly computeInstance: number;
  readonly memoryMiB: number;
  readonly usedMiB: number;
}

export interface StubGpu {
  readonly uuid: string;
  /** N of `/dev/nvidiaN`. */
  readonly minor: number;
  /** `0000:3a:00.0` */
  readonly pciId: string;
  readonly model: string;
  readonly architecture: string;
  readonly memoryMiB: number;
  /** What the driver says is in use, processes included. */
  readonly usedMiB: number;
  readonly processes: readonly StubProcess[];
  /** null: MIG is off. */
  readonly instances: readonly StubInstance[] | null;
  /** Uncorrected errors since the driver was loaded. */
  readonly eccErrors: number;
  readonly recoveryAction: string;
  readonly computeMode: string;
  readonly persistence: boolean;
  readonly display: boolean;
  /** On the bus, and the tool does not list it any more. */
  readonly isLost: boolean;
}

/** Of the process that runs the tests, among those beside it: a device is locked on the whole host, and two tests may each have one. */
const worker = (Number(process.env.VITEST_POOL_ID ?? 0) % 16).toString(16);

/** A healthy idle H100; `n` makes its UUID, its place and its number, from 0. */
export function card(n: number, more: Partial<StubGpu> = {}): StubGpu {
  const hex = n.toString(16).padStart(2, '0');
  return {
    uuid: `GPU-5eed${worker}${hex}0-0000-4000-8000-0000000000${hex}`,
    minor: n,
    pciId: `0000:${(0x1a + n).toString(16)}:00.0`,
    model: 'NVIDIA H100 80GB HBM3',
    architecture: 'Hopper',
    memoryMiB: 81_559,
    usedMiB: 1,
    processes: [],
    instances: null,
    eccErrors: 0,
    recoveryAction: 'None',
    computeMode: 'Default',
    persistence: true,
    display: false,
    isLost: false,
    ...more,
  };
}

/** `1g.10gb` on an idle card in MIG mode. `n` counts the host's instances, from 0. */
export function instance(n: number, gpuInstance: number, more: Partial<StubInstance> = {}): StubInstance {
  const hex = n.toString(16).padStart(2, '0');
  const uuid = `MIG-5eed${worker}${hex}1-0000-5000-8000-0000000000${hex}`;
  return { uuid, profile: '1g.10gb', gpuInstance, computeInstance: 0, memoryMiB: 9_856, usedMiB: 12, ...more };
}

export interface StubDriver {
  readonly version: string;
  readonly cuda: string;
}

export const driver580: StubDriver = { version: '580.105.08', cuda: '13.0' };

/** `nvidia-smi -q -x`, or with `-i` of one of `attached` cards. */
export function queryXml(cards: readonly StubGpu[], { version, cuda }: StubDriver, attached = cards.length): string {
  return `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
\t<timestamp>Fri Aug 21 08:54:01 2026</timestamp>
\t<driver_version>${version}</driver_version>
\t<cuda_version>${cuda}</cuda_version>
\t<attached_gpus>${attached}</attached_gpus>
${cards.map(gpuXml).join('')}</nvidia_smi_log>
`;
}

/** `nvidia-smi -L` */
export function listText(cards: readonly StubGpu[]): string {
  return cards
    .map(({ model, uuid, instances }, at) => {
      const mig = (instances ?? []).map((one, index) => `  MIG ${one.profile}     Device  ${index}: (UUID: ${one.uuid})\n`);
      return `GPU ${at}: ${model} (UUID: ${uuid})\n${mig.join('')}`;
    })
    .join('');
}

/** `--query-gpu` with the fields of src/gpu/nvidia/use.ts. */
export function useText(cards: readonly StubGpu[]): string {
  const line = ({ uuid, usedMiB, instances, processes }: StubGpu): string =>
    [uuid, usedMiB, instances === null ? (processes.length === 0 ? 0 : 97) : '[N/A]', 41, '71.15', 1410, 1215, '0x0'].join(', ');
  return cards.map((one) => `${line(one)}\n`).join('');
}

/** `/proc/driver/nvidia/version` */
export function versionText({ version }: StubDriver): string {
  return `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  ${version}  Release Build  (root@host)\n`;
}

function gpuXml(gpu: StubGpu): string {
  const on = (value: boolean) => (value ? 'Enabled' : 'Disabled');
  const mig = on(gpu.instances !== null);
  const address = `0000${gpu.pciId.toUpperCase()}`;
  return `\t<gpu id="${address}">
\t\t<product_name>${gpu.model}</product_name>
\t\t<product_architecture>${gpu.architecture}</product_architecture>
\t\t<display_active>${on(gpu.display)}</display_active>
\t\t<persistence_mode>${on(gpu.persistence)}</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>${mig}</current_mig>
\t\t\t<pending_mig>${mig}</pending_mig>
\t\t</mig_mode>
\t\t<mig_devices>${(gpu.instances ?? []).map(instanceXml).join('') || '\n\t\t\tNone\n\t\t'}</mig_devices>
\t\t<uuid>${gpu.uuid}</uuid>
\t\t<minor_number>${gpu.minor}</minor_number>
\t\t<gpu_recovery_action>${gpu.recoveryAction}</gpu_recovery_action>
\t\t<pci>
\t\t\t<pci_bus_id>${address}</pci_bus_id>
\t\t</pci>
\t\t<performance_state>P0</performance_state>
\t\t${memoryXml(gpu)}
\t\t<compute_mode>${gpu.computeMode}</compute_mode>
\t\t<ecc_mode>
\t\t\t<current_ecc>Enabled</current_ecc>
\t\t\t<pending_ecc>Enabled</pending_ecc>
\t\t</ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_uncorrectable>${gpu.eccErrors}</dram_uncorrectable>
\t\t\t</volatile>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_pending>No</remapped_row_pending>
\t\t\t<remapped_row_failure>No</remapped_row_failure>
\t\t</remapped_rows>
\t\t<temperature>
\t\t\t<gpu_temp>29 C</gpu_temp>
\t\t</temperature>
\t\t<processes>
${gpu.processes.map(processXml).join('')}\t\t</processes>
\t</gpu>
`;
}

function memoryXml({ memoryMiB, usedMiB }: { readonly memoryMiB: number; readonly usedMiB: number }): string {
  return `<fb_memory_usage><total>${memoryMiB} MiB</total><reserved>480 MiB</reserved><used>${usedMiB} MiB</used></fb_memory_usage>`;
}

function instanceXml(one: StubInstance, index: number): string {
  return `
\t\t\t<mig_device>
\t\t\t\t<index>${index}</index>
\t\t\t\t<gpu_instance_id>${one.gpuInstance}</gpu_instance_id>
\t\t\t\t<compute_instance_id>${one.computeInstance}</compute_instance_id>
\t\t\t\t<ecc_error_count><volatile_count><sram_uncorrectable>0</sram_uncorrectable></volatile_count></ecc_error_count>
\t\t\t\t${memoryXml(one)}
\t\t\t</mig_device>`;
}

function processXml({ pid, name = 'python', type = 'C', memoryMiB = 512, gpuInstance, computeInstance }: StubProcess): string {
  return `\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>${gpuInstance ?? 'N/A'}</gpu_instance_id>
\t\t\t\t<compute_instance_id>${computeInstance ?? 'N/A'}</compute_instance_id>
\t\t\t\t<pid>${pid}</pid>
\t\t\t\t<type>${type}</type>
\t\t\t\t<process_name>${name}</process_name>
\t\t\t\t<used_memory>${memoryMiB === null ? 'N/A' : `${memoryMiB} MiB`}</used_memory>
\t\t\t</process_info>
`;
}
