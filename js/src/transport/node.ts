/** What Node adds: a WebSocket for versions without one, and the cipher of older seals. */

import { createDecipheriv } from 'node:crypto';
import { legacy } from '../rooms/sealing.js';
import { NodeWebSocket } from './link_node.js';
import { fallback } from './platform.js';

fallback.WebSocket = NodeWebSocket;

legacy.open = (key, nonce, sealed, bound) => {
  const options = { authTagLength: 16 };
  const decipher = createDecipheriv('chacha20-poly1305', key, nonce, options);
  decipher.setAAD(bound, { plaintextLength: sealed.length - 16 });
  decipher.setAuthTag(sealed.subarray(-16));
  const opened = Buffer.concat([decipher.update(sealed.subarray(0, -16)), decipher.final()]);
  return new Uint8Array(opened);
};
