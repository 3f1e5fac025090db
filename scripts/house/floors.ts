/**
 * The rooms of `src`, from the ground up: a room is a folder of `src`, or a file that lies in `src` itself. A file imports from its own
 * room and from those above it in this list, whether it wants a value or only a type, now or later. docs/architecture.md prints it.
 */

export interface Room {
  readonly name: string;
  /** What the rest can rely on, as a sentence. */
  readonly guarantee: string;
  /** Where a reader starts, from its folder; a file has no such place. */
  readonly start: readonly string[];
}

const room = (name: string, guarantee: string, ...start: readonly string[]): Room => ({ name, guarantee, start });

export const rooms: readonly Room[] = [
  room('base', 'Words that every file may use: errors, units, globs. Needs nothing but Node.', 'errors.ts'),
  room('core', 'The state machine of a slot. Pure: time and the world are passed in.', 'pursue.ts', 'decide.ts', 'plan.ts'),
  room('system', 'What onejob asks of the operating system: processes, files, links, mounts.', 'foreign-tree.ts', 'group.ts'),
  room('http', 'Ports that stay open, connections in bounds, calls through proxies.', 'ports.ts', 'mux.ts'),
  room('gpu', 'What devices this host has, and whether one is clean. Unknown is never clean.', 'inventory.ts', 'proof.ts'),
  room(
    'ports',
    'What a runtime, a CI service and a cloud are. Interfaces, no code that acts.',
    'runtime.ts',
    'ci-service.ts',
    'cloud.ts',
  ),
  room('schema', 'How values are written in the config: each kind once, with its message.', 'key.ts', 'kinds.ts'),
  room('contract', 'What the API says: requests, answers and their words.', 'calls.ts', 'manager.ts', 'schema.ts'),
  room('workspace', 'The files of a job: selected, packed, and unpacked inside one folder only.', 'list.ts', 'unpack.ts'),
  room('store', 'The only SQL. What it has accepted survives a power cut.', 'store.ts', 'lead.ts'),
  room('secrets', "Opens jobs' secrets for one pipeline. Nothing of them is ever stored.", 'open.ts'),
  room('verdict', 'Whose fault the end of a job was, and the sums of that.', 'outcomes.ts', 'history.ts'),
  room('config', 'Every problem at once, by line and column; then one read-only value.', 'load.ts', 'keys.ts'),
  room('runtimes', 'Turns a recipe into a sandbox at the gate, and lets one script in.', 'gate.ts', 'choose.ts'),
  room('images', 'Chooses, builds and keeps the images of pools.', 'choose.ts', 'builder.ts'),
  room('logs', 'Follows sandboxes, removes the gate’s lines, counts what it leaves out.', 'followers.ts', 'log-file.ts'),
  room(
    'clouds',
    'AWS, Google Cloud and Azure over their REST APIs, and any other by a program. They keep no state.',
    'types.ts',
    'kit/caller.ts',
  ),
  room(
    'ci',
    'CI services and the own queue. A service never knows which runtime it has.',
    'types.ts',
    'index.ts',
    'early/port.ts',
    'late/port.ts',
  ),
  room('notices', 'Who is told what, once for each cause.', 'decide.ts'),
  room('api', 'HTTP over a socket and TCP: who may ask what, and the client.', 'routes.ts', 'door.ts', 'client.ts'),
  room(
    'machines',
    'Machines in clouds: made, joined, given jobs, and removed for certain.',
    'plan.ts',
    'controller.ts',
    'join/protocol.ts',
  ),
  room('manager', 'The loop, and all that hangs on it: actions, devices, caches, status.', 'loop/reconciler.ts', 'loop/loop.ts'),
  room('host.ts', 'One manager: puts the rooms below together, and takes them apart in reverse.'),
  room('cli', 'The commands. Each is loaded when it is typed.', 'commands', 'session.ts', 'run.ts'),
  room('cli.ts', 'The program with its help.'),
  room('daemon.ts', 'Opens a host, and does so again when a changed config is applied.'),
  room('main.ts', 'What only the process itself has.'),
];

export const floors: readonly string[] = rooms.map(({ name }) => name);
