// SPDX-License-Identifier: Apache-2.0

// Rstream measures streams over RDMA, as the program of the same name in
// rdma-core does, with which it works together.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rstream"
)

func main() { os.Exit(rstream.Main(os.Args[1:], os.Stdout, os.Stderr)) }
