/**
 * What NVIDIA's error numbers ("Xid", printed to the kernel log) mean for whether a GPU may be used again. Pure data.
 *
 * Grades: NVIDIA's Xid catalogue as carried by leptonai/gpud, `components/accelerator/nvidia/xid/catalog_generated.go`
 * at 73e270e (generated 2025-10-29), and NVIDIA/k8s-device-plugin, `internal/rm/health.go`. The catalogue sends 74 and
 * 144-150 through an NVLink workflow that ends at the owner's support, so they are graded `hardware`.
 */

/**
 * `application`: a program's fault, the GPU stays usable. `info`: a record, nothing to do now. `reset`: usable again after
 * a reset. `restart`: only after the host restarted. `hardware`: for the owner and the vendor. `unknown`: not in the
 * catalogue as we have it, so not to be used before a later look found it healthy.
 */
export type XidGrade = 'application' | 'info' | 'reset' | 'restart' | 'hardware' | 'unknown';

export interface XidMeaning {
  readonly grade: XidGrade;
  /** A few words for a person, without the number. */
  readonly meaning: string;
}

const grades: Readonly<Record<Exclude<XidGrade, 'unknown'>, Readonly<Record<number, string>>>> = {
  application: {
    13: 'graphics engine exception',
    31: 'GPU memory page fault',
    32: 'corrupted push buffer',
    43: 'GPU stopped processing for one program',
    45: 'clean-up after an earlier error',
    68: 'video decoder exception',
    69: 'graphics engine class error',
    94: 'contained memory error',
  },
  reset: {
    46: 'GPU stopped processing',
    48: 'double-bit memory error',
    62: 'internal micro-controller halted',
    64: 'memory remapping failed',
    95: 'uncontained memory error',
    109: 'context switch timeout',
    110: 'security fault',
    119: 'GSP firmware does not answer',
    120: 'GSP firmware error',
    136: 'link training failed',
    140: 'unrecovered memory error',
    143: 'GPU initialization error',
    155: 'NVLink software error',
    156: 'resource retired',
    158: 'fatal timeout',
  },
  restart: { 79: 'GPU has fallen off the bus', 151: 'key rotation error' },
  hardware: {
    74: 'NVLink error',
    81: 'VGA subsystem error',
    122: 'SPI read failure',
    123: 'SPI write failure',
    144: 'NVLink error (SAW)',
    145: 'NVLink error (RLW)',
    146: 'NVLink error (TLW)',
    147: 'NVLink error (TREX)',
    148: 'NVLink error (NVLPW_CTRL)',
    149: 'NVLink error (NETIR)',
    150: 'NVLink error (MSE)',
  },
  info: {
    63: 'memory remapping recorded',
    92: 'many corrected memory errors',
    93: 'InfoROM wear limit',
    121: 'corrected C2C link error',
    137: 'NVLink privilege error',
    154: 'recovery action changed',
    157: 'resource retirement failed',
    160: 'channel retired',
    161: 'channel retirement failed',
  },
};

/** What an Xid means. Every number has an answer: those that nobody graded are `unknown`. */
export function gradeXid(xid: number): XidMeaning {
  for (const grade of ['application', 'reset', 'restart', 'hardware', 'info'] as const) {
    const meaning = grades[grade][xid];
    if (meaning !== undefined) return { grade, meaning };
  }
  return { grade: 'unknown', meaning: 'not known to onejob' };
}
