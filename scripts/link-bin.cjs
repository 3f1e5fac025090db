// npm links the commands of dependencies, not a checkout's own: this makes "npx onejob" work right after "npm ci".
const { mkdirSync, rmSync, symlinkSync } = require('node:fs');
const { join } = require('node:path');
const bin = join(__dirname, '..', 'node_modules', '.bin');
mkdirSync(bin, { recursive: true });
rmSync(join(bin, 'onejob'), { force: true });
symlinkSync('../../bin/onejob', join(bin, 'onejob'));
