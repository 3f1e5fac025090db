/** Any cloud, through a program of the user. How it is written is `schema.ts`. */

import { complete } from '../../schema/key.ts';
import type { CloudType } from '../cloud-type.ts';
import type { CommandConfig } from './config.ts';
import { commandKeys } from './schema.ts';

export const command: CloudType<CommandConfig> = {
  type: 'command',
  title: 'A program',
  keys: commandKeys,
  maps: {},
  needs: ['program'],
  longestLifetime: Number.POSITIVE_INFINITY,
  cheapType: null,
  takesMail: false,
  typeProblem: () => null,
  resolve(name, written) {
    const { program, options = {}, secrets = {}, timeout, ...rest } = complete(commandKeys, written);
    if (program === undefined) return null;
    const { death_date: deathDate, shutdown_removes: shutdownRemoves } = rest;
    return { name, type: 'command', program, options, secrets, timeout, deathDate, shutdownRemoves };
  },
  secrets: ({ secrets }) => Object.entries(secrets).map(([name, secret]) => [`secrets.${name}`, secret]),
  permissions: [],
  open: async (cloud, parts) => (await import('./cloud.ts')).openCommand(cloud, parts),
};
