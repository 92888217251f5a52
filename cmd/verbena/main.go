// SPDX-License-Identifier: Apache-2.0

// Verbena checks, lists, watches and measures RDMA devices, and runs programs on
// the device in user space: verbena -h lists its commands.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/verbena"
)

func main() { os.Exit(verbena.Main(os.Args[1:], os.Stdout, os.Stderr)) }
