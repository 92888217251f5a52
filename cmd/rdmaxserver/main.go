// SPDX-License-Identifier: Apache-2.0

// Rdmaxserver receives one message over a reliable connection or an extended
// one, as rdma_xserver of rdma-core does. The client is rdmaxclient, or
// rdma_xclient of rdma-core.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmaxserver"
)

func main() { os.Exit(rdmaxserver.Main(os.Args[1:], os.Stdout, os.Stderr)) }
