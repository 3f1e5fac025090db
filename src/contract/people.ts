/** Who handed in a job, as the kernel says. */
export interface Submitter {
  readonly uid: number;
  /** As the host names that user. */
  readonly name: string;
}
