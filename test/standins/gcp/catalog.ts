/** What the stand-in's project sees of Google: a few zones, types, images and quotas. */

export interface Image {
  readonly name: string;
  readonly family: string | null;
  readonly sizeGb: number;
  readonly architecture: 'X86_64' | 'ARM64';
  readonly deprecated?: 'DEPRECATED' | 'OBSOLETE';
}

export interface Catalog {
  /** Machine types by zone, with the number of their vCPUs. */
  readonly machineTypes: Record<string, Record<string, number>>;
  /** Accelerators by zone. */
  readonly accelerators: Record<string, string[]>;
  /** Images by project. */
  readonly images: Record<string, Image[]>;
  /** Subnetworks by region, each with its network. */
  readonly subnetworks: Record<string, Record<string, string>>;
  /** Limits by region; `global` is the project. */
  readonly quotas: Record<string, Record<string, number>>;
}

const n1 = { 'n1-standard-4': 4, 'n1-standard-8': 8 };
const g2 = { 'g2-standard-4': 4, 'g2-standard-24': 24 };

export function catalog(): Catalog {
  return {
    machineTypes: {
      'us-central1-a': { ...n1, ...g2, 'a2-highgpu-1g': 12 },
      'us-central1-b': { ...n1, ...g2 },
      'us-central1-c': { ...n1, ...g2 },
      'us-central1-f': { ...n1, 'a2-highgpu-1g': 12 },
      'europe-west4-a': { ...n1, ...g2 },
      'europe-west4-b': n1,
    },
    accelerators: {
      'us-central1-a': ['nvidia-tesla-t4', 'nvidia-l4'],
      'us-central1-b': ['nvidia-tesla-t4', 'nvidia-l4'],
      'us-central1-c': ['nvidia-l4'],
      'us-central1-f': ['nvidia-tesla-t4'],
      'europe-west4-b': ['nvidia-tesla-t4'],
    },
    images: {
      'ubuntu-os-accelerator-images': [
        {
          name: 'ubuntu-accelerator-2404-amd64-with-nvidia-580-v20261101',
          family: 'ubuntu-accelerator-2404-amd64-with-nvidia-580',
          sizeGb: 20,
          architecture: 'X86_64',
        },
        {
          name: 'ubuntu-accelerator-2404-amd64-with-nvidia-570-v20260301',
          family: 'ubuntu-accelerator-2404-amd64-with-nvidia-570',
          sizeGb: 20,
          architecture: 'X86_64',
          deprecated: 'DEPRECATED',
        },
      ],
      'acme-images': [
        { name: 'gpu-base-7', family: 'gpu-base', sizeGb: 30, architecture: 'X86_64' },
        { name: 'gpu-arm-1', family: null, sizeGb: 10, architecture: 'ARM64' },
      ],
    },
    subnetworks: {
      'us-central1': { default: 'default', ci: 'acme-net' },
      'europe-west4': { default: 'default' },
    },
    quotas: {
      'us-central1': {
        CPUS: 72,
        NVIDIA_T4_GPUS: 4,
        PREEMPTIBLE_NVIDIA_T4_GPUS: 4,
        NVIDIA_L4_GPUS: 8,
        PREEMPTIBLE_NVIDIA_L4_GPUS: 0,
        NVIDIA_A100_GPUS: 1,
        PREEMPTIBLE_NVIDIA_A100_GPUS: 1,
        INSTANCES: 100,
      },
      'europe-west4': { CPUS: 24, NVIDIA_T4_GPUS: 1 },
      global: { GPUS_ALL_REGIONS: 16, CPUS_ALL_REGIONS: 72 },
    },
  };
}

export const regionOf = (zone: string): string => zone.replace(/-[^-]+$/, '');
