/** The role that onejob needs in a project of Google Cloud, as `gcloud iam roles create --file` reads it. */
import { permissions } from '../src/cloud/gcp/permissions.ts';

export function gcpRole(): string {
  return [
    '# Generated from the calls of onejob. docs/cloud/gcp.md says how to use it.',
    'title: onejob',
    'description: Makes, lists and deletes machines for CI jobs.',
    'stage: GA',
    'includedPermissions:',
    ...permissions.map((one) => `  - ${one}`),
    '',
  ].join('\n');
}
