// SPDX-License-Identifier: Apache-2.0

// Package ownnetwork gives a test binary that imports it, and the processes
// that it starts, a network of their own for the device in user space.
// Otherwise, processes of other tests could use a port that the test needs, and
// their connections would count as leaks.
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
