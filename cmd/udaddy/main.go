// SPDX-License-Identifier: Apache-2.0

// Udaddy exchanges datagrams over RDMA, as the program of the same name in
// rdma-core does, with which it works together.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/udaddy"
)

func main() { os.Exit(udaddy.Main(os.Args[1:], os.Stdout, os.Stderr)) }
