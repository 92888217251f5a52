// SPDX-License-Identifier: Apache-2.0

// Rdmastat shows what RDMA devices have counted, and which processes have
// objects on them.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmastat"
)

func main() { os.Exit(rdmastat.Main(os.Args[1:], os.Stdout, os.Stderr)) }
