// SPDX-License-Identifier: Apache-2.0

// Cmtime times the steps of many RDMA connections, as the program of the same
// name in rdma-core does, with which it works together.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/cmtime"
)

func main() { os.Exit(cmtime.Main(os.Args[1:], os.Stdout, os.Stderr)) }
