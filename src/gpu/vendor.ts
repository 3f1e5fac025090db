/** Vendors whose devices onejob can grant. */
export type Vendor = 'nvidia' | 'amd' | 'intel';
