/**
 * Builds the tool into `dist/index.js`, for installations without onejob's sources. It has its own copy of what it takes from them,
 * so it does not depend on where they are; packages stay imports.
 */
import { defineConfig } from 'vite';

export default defineConfig({
  root: import.meta.dirname,
  build: { ssr: 'index.ts', outDir: 'dist', target: 'node24', emptyOutDir: true },
  ssr: { target: 'node' },
});
