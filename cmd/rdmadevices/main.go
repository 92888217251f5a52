// SPDX-License-Identifier: Apache-2.0

// Rdmadevices lists the RDMA devices of this machine, with their ports and
// GIDs.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmadevices"
)

func main() { os.Exit(rdmadevices.Main(os.Args[1:], os.Stdout, os.Stderr)) }
