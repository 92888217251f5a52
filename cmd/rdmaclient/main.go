// SPDX-License-Identifier: Apache-2.0

// Rdmaclient exchanges one message with a server over RDMA, as rdma_client of
// rdma-core does. The server is rdmaserver, or rdma_server of rdma-core.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmaclient"
)

func main() { os.Exit(rdmaclient.Main(os.Args[1:], os.Stdout, os.Stderr)) }
