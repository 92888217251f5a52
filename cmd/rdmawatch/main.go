// SPDX-License-Identifier: Apache-2.0

// Rdmawatch prints what happens to the RDMA devices of this machine, as it
// happens.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmawatch"
)

func main() { os.Exit(rdmawatch.Main(os.Args[1:], os.Stdout, os.Stderr)) }
