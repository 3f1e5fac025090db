/** What an image is chosen for: the host, its devices, and what config says of the image. */
import type { Inventory } from '../gpu/inventory.ts';

export type Arch = 'amd64' | 'arm64';
export type Platform = 'sbsa' | 'l4t' | null;
export type Flavour = 'base' | 'runtime' | 'devel';

export interface ImageRequest {
  readonly arch: Arch;
  /** Where `arch` comes from, for the explanation. */
  readonly archFrom?: string;
  /** What kind of Arm host it is: a server, or a Jetson with Linux for Tegra. */
  readonly platform: Platform;
  readonly inventory: Inventory;
  /** UUIDs of what the agent will have; none for an agent without a device. Left out: whatever NVIDIA devices are there. */
  readonly devices?: readonly string[];
  readonly flavour: Flavour;
  /** As in the image's tag, such as `ubuntu22.04`; null for the best one there is. */
  readonly distribution: string | null;
  /** Name of the image, with `{cuda}`, `{flavour}`, `{distribution}`, `{arch}`. */
  readonly template: string;
}
