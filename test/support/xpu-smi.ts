/** What `xpu-smi` 1.x prints with `-j` about the card of test/fixtures/gpu/xpu-smi, whose recordings of these are tables. */

/** `discovery -d 0 -j`. */
export const xpuDevice = JSON.stringify({
  device_id: 0,
  device_name: 'Intel(R) Graphics [0x020a]',
  driver_version: '16929133',
  memory_ecc_state: 'enabled',
  memory_physical_size_byte: '34359738368',
  pci_bdf_address: '0000:4d:00.0',
});

/** `health -l -j`. */
export const xpuHealth = JSON.stringify({
  device_list: [
    {
      device_id: 0,
      core_temperature: { status: 'Ok', description: 'All temperature sensors are healthy.' },
      frequency: { status: 'OK', description: 'The device frequency not throttled' },
      memory: { status: 'Ok', description: 'All memory channels are healthy.' },
    },
  ],
});
