import { expect, test } from 'vitest';
import { engineObstacle, type KernelLook, kernelObstacle } from './containers-obstacle.ts';

const kernel = (release: string, settings: Readonly<Record<string, string>> = {}, isProfileLoaded = false): KernelLook => ({
  release,
  sysctl: (name) => settings[name] ?? null,
  isProfileLoaded: () => isProfileLoaded,
});

test.each([
  ['5.4.0-150-generic', {}, /^the kernel of this host is 5\.4\.0-150-generic, and 5\.13 is the first/],
  ['4.18.0-553.el8_10.x86_64', {}, /5\.13 is the first/],
  [
    '6.1.0',
    { 'user.max_user_namespaces': '0' },
    /^the kernel lets nobody make user namespaces \(sysctl user\.max_user_namespaces is 0\)$/,
  ],
  ['6.1.0', { 'kernel.unprivileged_userns_clone': '0' }, /^the kernel lets only root make user namespaces/],
  [
    '6.8.0',
    { 'kernel.apparmor_restrict_unprivileged_userns': '1' },
    /^AppArmor keeps users from making namespaces .* profile onejob-engine is not loaded: as root, type "onejob service install"$/,
  ],
])('a host with kernel %s and %j has no engines for jobs', (release, settings, why) => {
  expect(kernelObstacle(kernel(release, settings))).toMatch(why);
});

test.each([
  ['5.13.0', {}],
  ['5.14.0-503.el9.x86_64', { 'user.max_user_namespaces': '127412' }],
  ['6.18.0', { 'kernel.unprivileged_userns_clone': '1', 'kernel.apparmor_restrict_unprivileged_userns': '0' }],
])('a host with kernel %s and %j has', (release, settings) => {
  expect(kernelObstacle(kernel(release, settings))).toBeNull();
});

test('where AppArmor keeps users from making namespaces, its profile lets engines make them', () => {
  expect(kernelObstacle(kernel('6.8.0', { 'kernel.apparmor_restrict_unprivileged_userns': '1' }, true))).toBeNull();
  expect(kernelObstacle(kernel('6.8.0', { 'user.max_user_namespaces': '0' }, true))).not.toBeNull();
});

test('it is a Docker Engine of this host', () => {
  expect(engineObstacle({ kind: 'tcp' }, false)).toBe('it needs a Docker Engine on this host');
  expect(engineObstacle({ kind: 'unix' }, true)).toBe('it needs a Docker Engine, and this is Podman');
  expect(engineObstacle({ kind: 'unix' }, false)).toBeNull();
});
