import { expect, test } from 'vitest';
import { jobImageProblem } from './job-image.ts';

test.each([
  'onejob/own-queue:aaaaaaaaaaaa',
  'docker.io/onejob/own-queue:aaaaaaaaaaaa',
  'index.docker.io/onejob/own-queue',
  'localhost/onejob/own-queue:aaaaaaaaaaaa',
  'ONEJOB/own-queue:aaaaaaaaaaaa',
  'onejob-held:2dacd40417',
  'library/onejob-held:2dacd40417',
  'docker.io/library/onejob-held',
  'onejob-held@sha256:0123456789012345678901234567890123456789012345678901234567890123',
])('a job may not name an image that onejob makes: %s', (reference) => {
  expect(jobImageProblem(reference)).toMatch(/onejob makes/);
});

test.each([
  'sha256:0123456789012345678901234567890123456789012345678901234567890123',
  '2dacd40417ab',
  'cafe',
  'docker.io/library/cafe',
])('a job may not name an image of this host by its id: %s', (reference) => {
  expect(jobImageProblem(reference)).toMatch(/the id of an image/);
});

test.each([
  'debian:stable-slim',
  'onejob-test/base:1',
  'ghcr.io/onejob/tool:1',
  'registry.example/onejob-held:1',
  'cafe:latest',
  'debian@sha256:0123456789012345678901234567890123456789012345678901234567890123',
])('a job may name %s', (reference) => {
  expect(jobImageProblem(reference)).toBeNull();
});
