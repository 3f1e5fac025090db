import { tryHostsWith } from './acts.ts';

tryHostsWith('Docker 28');
