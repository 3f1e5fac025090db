import { tryHostsWith } from './acts.ts';

tryHostsWith('Docker 29', [2]);
