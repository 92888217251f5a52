// SPDX-License-Identifier: Apache-2.0

// Rping tests an RDMA connection with reads and writes, as the program of the
// same name in rdma-core does, with which it works together.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rping"
)

func main() { os.Exit(rping.Main(os.Args[1:], os.Stdout, os.Stderr)) }
