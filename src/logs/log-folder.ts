/** The logs of all agents, in one folder. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { LogPiece } from '../api/manager.ts';
import type { AgentId } from '../core/slot.ts';
import { deleteLog, LogFile, type LogFileOptions } from './log-file.ts';
import { filesOf } from './parts.ts';
import { readLog } from './read.ts';

export type LogFolder = ReturnType<typeof createLogFolder>;

/** `options` apply to every log that is opened. */
export function createLogFolder(folder: string, options: LogFileOptions = {}) {
  const path = (agent: AgentId): string => join(folder, `${agent}.log`);
  return {
    path,
    files: (agent: AgentId): string[] => filesOf(path(agent)),
    /** Opens or makes an agent's log. @throws OnejobError E_STATE_FULL, E_STATE_DIR */
    open: (agent: AgentId): LogFile => new LogFile(path(agent), options),
    delete: (agent: AgentId): void => deleteLog(path(agent)),
    /** A log that nobody writes to; empty if there is none. */
    async *read(agent: AgentId): AsyncGenerator<LogPiece, void> {
      if (existsSync(path(agent))) yield* readLog(path(agent));
    },
  };
}
