export type Vendor = 'nvidia' | 'amd' | 'intel';
