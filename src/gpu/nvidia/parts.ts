/** What can be known of the NVIDIA GPUs of one host, each part by itself; whatever was not asked for is left out or null. */
import type { Reply } from '../reply.ts';

export interface NvidiaParts {
  /** `nvidia-smi -q -x`; several when each GPU was asked by itself (`-i UUID`). The only part that knows health and processes whole. */
  readonly xml?: Reply | readonly Reply[] | null;
  /** `nvidia-smi -L`: the only one with the UUIDs and profiles of MIG instances. */
  readonly list?: Reply | readonly Reply[] | null;
  /** `nvidia-smi --query-gpu=…` and `--query-compute-apps=…`, as CSV. Without a header row the fields are taken from `args`. */
  readonly csv?: Reply | readonly Reply[] | null;
  /** `nvidia-smi -q`: as XML, but for people. */
  readonly text?: Reply | null;
  /** `nvidia-smi --version`, or the table of `nvidia-smi` alone, of which only the versions are read. */
  readonly version?: Reply | null;
  /** `/proc/driver/nvidia/version`: the kernel module that is loaded. */
  readonly procVersion?: string | null;
  /** The texts of `/proc/driver/nvidia/gpus/<PCI address>/information`. */
  readonly procGpus?: readonly string[] | null;
  /**
   * PCI addresses of the NVIDIA GPUs that should be seen: all on the bus but those that another driver holds (vfio-pci for a
   * virtual machine). null where nobody knows.
   */
  readonly pciIds?: readonly string[] | null;
  /** How many there are, where only that is known. */
  readonly pciCount?: number | null;
}
