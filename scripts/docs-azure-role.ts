/** The smallest role for clouds of type `azure`, made from the calls of its adapter. */
import { allPermissions } from '../src/cloud/azure/permissions.ts';

/** As `az role definition create --role-definition` takes it, once its scope is the subscription. */
export function azureRole(): string {
  const role = {
    Name: 'onejob',
    IsCustom: true,
    Description: 'Makes and removes GPU machines of onejob, each in a resource group of its own.',
    Actions: allPermissions,
    NotActions: [],
    DataActions: [],
    NotDataActions: [],
    AssignableScopes: ['/subscriptions/SUBSCRIPTION'],
  };
  // As the formatter of this repository has it: a list of one in one line.
  return `${JSON.stringify(role, null, 2).replace(/\[\n\s+("[^"\n]+")\n\s+\]/g, '[$1]')}\n`;
}
