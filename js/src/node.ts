/** The client for Node. */

import './transport/node.js';

export * from './index.js';
