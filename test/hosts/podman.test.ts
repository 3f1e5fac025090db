import { tryHostsWith } from './acts.ts';

tryHostsWith('Podman');
