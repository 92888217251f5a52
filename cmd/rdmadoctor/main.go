// SPDX-License-Identifier: Apache-2.0

// Rdmadoctor says whether RDMA works on this machine, and if not, why and what
// to do.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmadoctor"
)

func main() { os.Exit(rdmadoctor.Main(os.Args[1:], os.Stdout, os.Stderr)) }
