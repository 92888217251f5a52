// SPDX-License-Identifier: Apache-2.0

// Mckey sends datagrams to a multicast group over RDMA, as the program of the
// same name in rdma-core does, with which it works together.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/mckey"
)

func main() { os.Exit(mckey.Main(os.Args[1:], os.Stdout, os.Stderr)) }
