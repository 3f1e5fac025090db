/**
 * What requests to Azure may contain. Azure refuses a field that it does not know ("Could not find member"), so these are strict, and
 * have the fields that onejob may use and their values. Written from the ARM schema 2025-04-01 of Compute; no real Azure was asked.
 */
import { z } from 'zod';

const text = z.string().min(1);
const reference = z.strictObject({ id: z.string().regex(/^\/subscriptions\//) });
const deletion = z.enum(['Delete', 'Detach']);
/** At most 50 (Azure, tag resources: limitations). */
const tags = z
  .record(
    z
      .string()
      .max(512)
      .regex(/^[^<>%&\\?/]+$/),
    z.string().max(256),
  )
  .refine((all) => Object.keys(all).length <= 50);

const publicAddress = z.strictObject({
  name: text,
  sku: z.strictObject({ name: z.enum(['Basic', 'Standard']), tier: z.enum(['Regional', 'Global']).optional() }).optional(),
  tags: tags.optional(),
  properties: z
    .strictObject({
      deleteOption: deletion.optional(),
      publicIPAllocationMethod: z.enum(['Dynamic', 'Static']).optional(),
      publicIPAddressVersion: z.enum(['IPv4', 'IPv6']).optional(),
      idleTimeoutInMinutes: z.number().int().optional(),
    })
    .optional(),
});

const networkInterface = z.strictObject({
  name: text,
  tags: tags.optional(),
  properties: z.strictObject({
    deleteOption: deletion.optional(),
    primary: z.boolean().optional(),
    enableAcceleratedNetworking: z.boolean().optional(),
    networkSecurityGroup: reference.optional(),
    ipConfigurations: z
      .array(
        z.strictObject({
          name: text,
          properties: z.strictObject({
            primary: z.boolean().optional(),
            subnet: reference,
            publicIPAddressConfiguration: publicAddress.optional(),
          }),
        }),
      )
      .min(1),
  }),
});

export const machineBody = z.strictObject({
  location: text,
  tags: tags.optional(),
  zones: z.array(z.enum(['1', '2', '3'])).optional(),
  placement: z.strictObject({ zonePlacementPolicy: z.enum(['Any', 'Auto']) }).optional(),
  properties: z
    .strictObject({
      hardwareProfile: z.strictObject({ vmSize: text }),
      storageProfile: z.strictObject({
        imageReference: z.union([
          z.strictObject({ publisher: text, offer: text, sku: text, version: text }),
          z.strictObject({ id: text }),
        ]),
        osDisk: z.strictObject({
          name: z
            .string()
            .regex(/^[A-Za-z0-9][\w.-]{0,79}$/)
            .optional(),
          createOption: z.enum(['FromImage']),
          deleteOption: deletion.optional(),
          diskSizeGB: z.number().int().min(1).max(4095).optional(),
          caching: z.enum(['None', 'ReadOnly', 'ReadWrite']).optional(),
          managedDisk: z
            .strictObject({ storageAccountType: z.enum(['Standard_LRS', 'StandardSSD_LRS', 'Premium_LRS']).optional() })
            .optional(),
        }),
      }),
      osProfile: z.strictObject({
        // Linux: 64 characters, and not every sign.
        computerName: z.string().regex(/^[A-Za-z0-9][A-Za-z0-9-]{0,63}$/),
        adminUsername: z.string().regex(/^(?!(admin|administrator|root|user|test)$)[a-z_][a-z0-9_-]{0,63}$/),
        customData: z.base64().refine((encoded) => Buffer.from(encoded, 'base64').length <= 65_535),
        linuxConfiguration: z.strictObject({
          disablePasswordAuthentication: z.literal(true),
          provisionVMAgent: z.boolean().optional(),
          ssh: z.strictObject({
            publicKeys: z
              .array(z.strictObject({ path: z.string().regex(/^\/home\/.*\/authorized_keys$/), keyData: z.string() }))
              .min(1),
          }),
        }),
      }),
      networkProfile: z.strictObject({
        networkApiVersion: z.enum(['2020-11-01', '2022-11-01']),
        networkInterfaceConfigurations: z.array(networkInterface).length(1),
      }),
      diagnosticsProfile: z
        .strictObject({ bootDiagnostics: z.strictObject({ enabled: z.boolean(), storageUri: text.optional() }) })
        .optional(),
      priority: z.enum(['Regular', 'Low', 'Spot']).optional(),
      evictionPolicy: z.enum(['Deallocate', 'Delete']).optional(),
      billingProfile: z.strictObject({ maxPrice: z.number() }).optional(),
      securityProfile: z
        .strictObject({
          securityType: z.enum(['TrustedLaunch', 'ConfidentialVM', 'Standard']).optional(),
          uefiSettings: z
            .strictObject({ secureBootEnabled: z.boolean().optional(), vTpmEnabled: z.boolean().optional() })
            .optional(),
        })
        .optional(),
    })
    .refine(({ priority, evictionPolicy, billingProfile }) => {
      return priority === 'Spot' || (evictionPolicy === undefined && billingProfile === undefined);
    }, 'an eviction policy and a maximum price are for spot only'),
});
export type MachineBody = z.output<typeof machineBody>;

/** What may change of a machine, as far as the stand-in knows. */
export const machinePatch = z.strictObject({
  properties: z.strictObject({ userData: z.base64().refine((encoded) => Buffer.from(encoded, 'base64').length <= 65_536) }),
});

export const groupBody = z.strictObject({ location: text, tags: tags.optional() });

export const submitBody = z.strictObject({
  schedule: z.strictObject({
    deadline: z.iso.datetime({ offset: true }),
    timezone: text,
    deadlineType: z.enum(['InitiateAt', 'CompleteBy']),
  }),
  executionParameters: z.strictObject({
    optimizationPreference: z.enum(['Cost', 'Availability', 'CostAvailabilityBalanced']).optional(),
    retryPolicy: z.strictObject({ retryCount: z.number().int(), retryWindowInMinutes: z.number().int() }).optional(),
  }),
  resources: z.strictObject({ ids: z.array(text).min(1).max(100) }),
  correlationid: z.uuid(),
});

export const statusBody = z.strictObject({ operationIds: z.array(text).min(1), correlationid: text });

/** An OpenSSH key of RSA with at least 2048 bits. */
export function isGoodKey(keyData: string): boolean {
  const [kind, base64 = ''] = keyData.split(' ');
  const bytes = Buffer.from(base64, 'base64');
  return kind === 'ssh-rsa' && bytes.subarray(4, 11).toString() === 'ssh-rsa' && bytes.length >= 256;
}
