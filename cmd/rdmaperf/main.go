// SPDX-License-Identifier: Apache-2.0

// Rdmaperf measures latency and bandwidth, as the programs of perftest do, with
// which it works together.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/rdmaperf"
)

func main() { os.Exit(rdmaperf.Main(os.Args[1:], os.Stdout, os.Stderr)) }
