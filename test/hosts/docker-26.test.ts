import { tryHostsWith } from './acts.ts';

tryHostsWith('Docker 26', [1]);
