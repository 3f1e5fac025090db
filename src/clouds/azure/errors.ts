/** What Azure's error codes mean. The code that tells most is often deep in `details`, under one that only says that something failed. */
import { z } from 'zod';
import { brief } from '../../http/exchange.ts';
import { CloudError, type CloudErrorCode } from '../../ports/cloud.ts';
import { jsonOf } from '../../system/json.ts';
import { type CloudRequest, sentence } from '../kit/caller.ts';

/** `code`: as Azure writes it, or `HTTP 500` without one. */
export interface Said {
  readonly code: string;
  readonly message: string;
}

/** Codes that only say that something failed. */
const covers: ReadonlySet<string> = new Set([
  ...['InvalidTemplateDeployment', 'DeploymentFailed', 'ResourceDeploymentFailure', 'ResourceOperationFailure'],
  ...['MultipleErrorsOccurred', 'BadRequest', 'Conflict', 'VMStartTimedOut'],
]);

const errorShape = z.object({
  code: z.string().nullish(),
  message: z.string().nullish(),
  details: z.array(z.unknown()).nullish(),
});
const wrapped = z.object({ error: z.unknown() });

/** All errors of an answer or operation, the innermost first. Messages may be such an answer again, as text. */
function within(value: unknown, depth = 0): Said[] {
  const outer = wrapped.safeParse(value);
  const found = errorShape.safeParse(outer.success ? outer.data.error : value).data;
  if (found === undefined || depth > 5) return [];
  const { code, message, details } = found;
  const inner = [...(details ?? []), ...(message?.startsWith('{') === true ? [jsonOf(message)] : [])];
  const own = code == null || code === '' ? [] : [{ code, message: message ?? '' }];
  return [...inner.flatMap((one) => within(one, depth + 1)), ...own];
}

/** The error that tells most. */
export function saidOf(body: unknown, status: number | null): Said {
  const all = within(body);
  return (
    all.find(({ code }) => kindOf(code, '', null) !== null) ??
    all.find(({ code }) => !covers.has(code)) ??
    all[0] ?? { code: status === null ? 'no code' : `HTTP ${status}`, message: '' }
  );
}

const kinds: Readonly<Partial<Record<CloudErrorCode, readonly string[]>>> = {
  E_CLOUD_CAPACITY: [
    ...['SkuNotAvailable', 'AllocationFailed', 'ZonalAllocationFailed', 'OverconstrainedAllocationRequest'],
    ...['OverconstrainedZonalAllocationRequest', 'SpotNotAvailable', 'LowPriorityNotAvailable'],
  ],
  E_CLOUD_CREDENTIAL: [
    ...['InvalidAuthenticationToken', 'InvalidAuthenticationTokenTenant', 'ExpiredAuthenticationToken', 'AuthenticationFailed'],
    ...['AuthenticationFailedMissingToken', 'InvalidAuthenticationTokenAudience', 'InvalidAuthenticationInfo'],
  ],
  E_CLOUD_ACCOUNT: [
    ...['MissingSubscriptionRegistration', 'SubscriptionNotRegistered', 'NoRegisteredProviderFound', 'SubscriptionNotFound'],
    ...['ReadOnlyDisabledSubscription', 'DisallowedProvider', 'MarketplacePurchaseEligibilityFailed'],
    'ResourcePurchaseValidationFailed',
  ],
  E_CLOUD_DENIED: [
    ...['AuthorizationFailed', 'LinkedAuthorizationFailed', 'InvalidAuthorization', 'RequestDisallowedByPolicy', 'ScopeLocked'],
  ],
};

/** null: the code says nothing, look at the status. */
function kindOf(code: string, message: string, status: number | null): CloudErrorCode | null {
  const known = Object.entries(kinds).find(([, codes]) => codes.includes(code));
  if (known !== undefined) return known[0] as CloudErrorCode;
  if (/quota/i.test(code) || /CountLimitReached$/.test(code)) return 'E_CLOUD_QUOTA';
  // One code for what is forbidden now and for every kind of quota.
  if (code === 'OperationNotAllowed' && /quota|exceed/i.test(message)) return 'E_CLOUD_QUOTA';
  if (/^(TooManyRequests|.*Throttled|RetryableError)$/.test(code)) return 'E_CLOUD_THROTTLED';
  if (status === 401) return 'E_CLOUD_CREDENTIAL';
  if (status === 403) return 'E_CLOUD_DENIED';
  if (status === 429) return 'E_CLOUD_THROTTLED';
  if (status !== null && status >= 500) return 'E_CLOUD_UNREACHABLE';
  return null;
}

/** The machine certainly does not run. Others, such as `OSProvisioningTimedOut`, come after it has started. */
const neverRan: readonly CloudErrorCode[] = ['E_CLOUD_CAPACITY', 'E_CLOUD_QUOTA'];
/** Another try would fail, too. */
const lasting: readonly CloudErrorCode[] = ['E_CLOUD_REQUEST', 'E_CLOUD_DENIED', 'E_CLOUD_QUOTA', 'E_CLOUD_ACCOUNT'];

export interface Refused extends Pick<CloudRequest, 'doing' | 'needs'> {
  readonly said: Said;
  /** Of the answer; null: an operation that was accepted failed later. */
  readonly status: number | null;
  /** Whether a machine may be the result of the call. */
  readonly makesMachine: boolean;
}

export function armRefusal({ doing, said: { code, message }, status, makesMachine, needs }: Refused): CloudError {
  const kind = kindOf(code, message, status) ?? (status === null ? 'E_CLOUD_ANSWER' : 'E_CLOUD_REQUEST');
  const words = kind === 'E_CLOUD_QUOTA' ? (quotaIn(message) ?? brief(message)) : brief(message);
  const what = `Azure ${status === null ? 'ended it with' : 'answered'} ${code}${words === '' ? '' : `: ${words}`}`;
  const isUnsure = (status === null || status >= 500 || status === 408) && !neverRan.includes(kind);
  return new CloudError(kind, `Cannot ${doing}: ${sentence(what)}`, {
    reason: code,
    isAmbiguous: makesMachine && isUnsure,
    hint: hintFor(kind, code, message, needs),
    retry: !lasting.includes(kind),
  });
}

/** The numbers of a refusal for a quota: Azure's text is too long for one message. */
function quotaIn(message: string): string | null {
  const name = /approved (.{1,80}?) quota/i.exec(message)?.[1];
  const number = (what: string): string | null => new RegExp(`${what}: (\\d+)`, 'i').exec(message)?.[1] ?? null;
  const [limit, usage] = [number('Current Limit'), number('Current Usage')];
  const [more, least] = [number('Additional Required'), number('New Limit Required')];
  if (name === undefined || limit === null) return null;
  const where = /Location: ([\w ]+?),/.exec(message)?.[1];
  const place = where === undefined ? '' : ` in ${where}`;
  return `the quota "${name}"${place} has ${limit}, of which ${usage ?? '?'} are used; ${more ?? '?'} more are needed, so ask for at least ${least ?? '?'}`;
}

function hintFor(kind: CloudErrorCode, code: string, message: string, needs: readonly string[]): string | null {
  switch (kind) {
    case 'E_CLOUD_CAPACITY':
      return code === 'SkuNotAvailable'
        ? 'Azure has none of this size there now, or not for this subscription; "onejob cloud check" says which. Name more sizes in "types".'
        : 'onejob tries the next of "types"; name more of them.';
    case 'E_CLOUD_QUOTA':
      return 'Ask for more in the Azure portal under Quotas, or name another size in "types".';
    case 'E_CLOUD_DENIED': {
      if (code === 'RequestDisallowedByPolicy') return 'A policy of the organisation forbids it; have this subscription exempted.';
      if (code === 'ScopeLocked') return 'Remove the lock from the subscription or group: onejob must be able to remove machines.';
      const action = /perform action '([^']{1,120})'/.exec(message)?.[1];
      return `Give the credential a role with ${action ?? needs.join(', ')}; deploy/cloud/azure-role.json has all that onejob needs.`;
    }
    case 'E_CLOUD_ACCOUNT': {
      const name = /(Microsoft\.[A-Za-z]+)/.exec(message)?.[1];
      if (code === 'SubscriptionNotFound' || code === 'ReadOnlyDisabledSubscription') return 'Check "subscription" and its state.';
      return name === undefined ? null : `Run "az provider register --namespace ${name}".`;
    }
    case 'E_CLOUD_THROTTLED':
    case 'E_CLOUD_UNREACHABLE':
      return 'onejob tries again.';
    default:
      return null;
  }
}
