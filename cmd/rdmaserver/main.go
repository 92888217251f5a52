// SPDX-License-Identifier: Apache-2.0

// Rdmaserver exchanges one message with a client over RDMA, as rdma_server of
// rdma-core does. The client is rdmaclient, or rdma_client of rdma-core.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmaserver"
)

func main() { os.Exit(rdmaserver.Main(os.Args[1:], os.Stdout, os.Stderr)) }
