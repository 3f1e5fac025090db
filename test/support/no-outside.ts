/**
 * Holds the lane `unit` to what it says: a test that starts a process or opens a server fails at once, with the way out.
 * What such a test says depends on how busy the machine is, so it belongs into the lane `process`.
 */
import childProcess from 'node:child_process';
import { syncBuiltinESMExports } from 'node:module';
import { Server } from 'node:net';

function refuse(what: string): () => never {
  return () => {
    throw new Error(`A test of the lane unit ${what}. Name its file under "processes" in test/lanes.ts, or do without.`);
  };
}

const start = refuse('starts a process');
// What all of spawn, exec, execFile and fork come down to; Node's types leave it out.
Object.assign(childProcess.ChildProcess.prototype, { spawn: start });
Object.assign(childProcess, { spawnSync: start, execSync: start, execFileSync: start });
syncBuiltinESMExports();
Object.assign(Server.prototype, { listen: refuse('opens a server') });
