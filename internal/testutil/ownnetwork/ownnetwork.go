// SPDX-License-Identifier: Apache-2.0

// Package ownnetwork, when a test imports it, gives the test binary and the
// processes that it starts a network of the device in user space of their own.
// Those of other tests could have the port that it needs, and their connections
// would count as leaks.
package ownnetwork

import (
	"fmt"
	"os"
)

const variable = "VERBENA_NETWORK"

func init() {
	if os.Getenv(variable) == "" {
		os.Setenv(variable, fmt.Sprintf("test %d", os.Getpid()))
	}
}
