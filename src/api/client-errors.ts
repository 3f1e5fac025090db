/** What can go wrong between a client and its daemon, told apart: nobody there, not allowed, cut off, silent. */
import { OnejobError } from '../errors.ts';
import { socketDenied } from './socket-access.ts';

/** What broke a request off, as an error that says what to do. Ours stay as they are. */
export function connectionError(error: unknown, socket: string): OnejobError {
  if (error instanceof OnejobError) return error;
  const code = error instanceof Error && 'code' in error ? error.code : null;
  if (code === 'EACCES' || code === 'EPERM') return socketDenied(socket);
  if (code === 'ENOENT' || code === 'ECONNREFUSED' || code === 'ENOTDIR') {
    return new OnejobError('E_DAEMON_ABSENT', `Cannot reach the daemon: nothing listens at ${socket}.`, {
      hint: 'Start it with "onejob up".',
      retry: true,
      cause: error,
    });
  }
  const what = error instanceof Error ? error.message : String(error);
  return new OnejobError('E_DAEMON_CUT', `The connection to the daemon at ${socket} was cut: ${what}.`, {
    retry: true,
    cause: error,
  });
}

/** `patience`: ms that were waited. */
export function silent(socket: string, call: { readonly method: string; readonly path: string }, patience: number): OnejobError {
  return new OnejobError(
    'E_DAEMON_SILENT',
    `The daemon at ${socket} did not answer ${call.method} ${call.path} within ${Math.round(patience / 1000)} s.`,
    { hint: 'It may be stopped or overloaded: see whether its process runs, and what it last logged.', retry: true },
  );
}
