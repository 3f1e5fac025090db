/** The hidden `cloud join` and `cloud attend`: their options. */
import { type Cli, failed } from './options.ts';

/** `cloud`: the command that they are part of. */
export function addMachineCommands(cloud: Cli): void {
  for (const [name, act, description] of [
    ['join', 'joinCloud', 'exchange the join token of this machine for its config'],
    ['attend', 'attendCloud', 'do what the controller of this machine asks, until a signal'],
  ] as const)
    cloud
      .command(name, { hidden: true })
      .local()
      .description(description)
      .requiredOption('--file <file>', 'what cloud-init wrote for this machine')
      .does(failed, async (session, { file }: { file: string }) => (await import('../cloud-machine.ts'))[act](session, file));
}
