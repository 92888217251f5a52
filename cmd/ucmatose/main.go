// SPDX-License-Identifier: Apache-2.0

// Ucmatose tests many RDMA connections at once, as the program of the same name
// in rdma-core does, with which it works together.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/ucmatose"
)

func main() { os.Exit(ucmatose.Main(os.Args[1:], os.Stdout, os.Stderr)) }
