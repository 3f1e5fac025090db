/** What `doctor` says of a runtime of type slurm. Changes nothing. */
import { access, constants, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { codeOf, toFailure } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import { type AvoidedNodes, avoidedFindings } from '../avoided.ts';
import type { SlurmCommands } from './commands.ts';
import type { SlurmConfig } from './config.ts';

interface CheckParts {
  readonly config: SlurmConfig;
  readonly commands: SlurmCommands;
  readonly avoided: AvoidedNodes['now'];
  readonly stateDir: string;
}

export async function check({ config, commands, stateDir, avoided }: CheckParts, signal: AbortSignal): Promise<Finding[]> {
  const { name, folder } = config;
  const findings: Finding[] = [];
  try {
    findings.push(fine(`runtime ${name}`, `Slurm ${await commands.version(signal)} answers.`));
    const hasAccounting = await commands.accounted('onejob', signal).then(
      () => true,
      () => false,
    );
    const what = hasAccounting
      ? 'The cluster has accounting: sacct says how an agent ended that the queue has forgotten.'
      : 'The cluster has no accounting that answers, so only its queue says how an agent ended.';
    findings.push(fine(`runtime ${name}`, what));
  } catch (error) {
    signal.throwIfAborted();
    const hint =
      'Type "scontrol ping" on this host. If it answers there, your shell knows more than the daemon: write its SLURM_CONF as "conf" into the runtime.';
    findings.push(problem(`runtime ${name}`, toFailure(error).message, hint));
  }
  if (folder !== null) findings.push(await checkFolder(name, folder));
  if (folder !== null && `${stateDir}/`.startsWith(`${folder}/`))
    findings.push(
      problem(`runtime ${name}`, `The state directory ${stateDir} is in ${folder}.`, 'Write a state_dir on a local disk.'),
    );
  if (process.getuid?.() === 0)
    findings.push(
      warning(
        `runtime ${name}`,
        'onejob runs as root, and so would its jobs on the nodes.',
        'Run onejob as a user of its own on a login node.',
      ),
    );
  return [
    ...findings,
    ...avoidedFindings(`runtime ${name}`, avoided, (node) => `scontrol update nodename=${node} state=drain reason=…`),
  ];
}

async function checkFolder(name: string, folder: string): Promise<Finding> {
  const subject = `runtime ${name}`;
  const at = await stat(folder).then(
    () => folder,
    () => dirname(folder),
  );
  try {
    await access(at, constants.W_OK | constants.X_OK);
    return fine(subject, `Agents have their files in ${folder}.`);
  } catch (error) {
    const hint = 'Write a "folder" that this user can write to, on a file system that the nodes share.';
    return problem(subject, `Cannot write to ${at}: ${codeOf(error)}.`, hint);
  }
}
