/** Offers: in words for people, and in which order they are asked for. */
import type { HostPlan, Offer } from '../ports/cloud.ts';

/** Whether machines are asked for as spot, in the order in which they are. */
export const spotsOf = ({ spot }: Pick<HostPlan, 'spot'>): readonly boolean[] =>
  ({ never: [false], prefer: [true, false], only: [true] })[spot];

/** As `g6.xlarge (spot) in us-west-2a`. */
export function offerText({ type, spot, zone }: Offer): string {
  return `${type}${spot ? ' (spot)' : ''}${zone === null ? '' : ` in ${zone}`}`;
}
