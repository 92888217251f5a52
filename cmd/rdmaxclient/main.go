// SPDX-License-Identifier: Apache-2.0

// Rdmaxclient sends one message to a server over a reliable connection or an
// extended one, as rdma_xclient of rdma-core does. The server is rdmaxserver, or
// rdma_xserver of rdma-core.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmaxclient"
)

func main() { os.Exit(rdmaxclient.Main(os.Args[1:], os.Stdout, os.Stderr)) }
