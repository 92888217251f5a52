// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"slices"
)

// Checks are the checks of one host's verbs.
var Checks = slices.Concat(device, transfers, keys, receives, states, queues, memory, own, sharedQueues, events, atomics, extended, windows, datagrams, unreliable, xrc)
