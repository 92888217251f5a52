// SPDX-License-Identifier: Apache-2.0

// Softroce runs programs that are not Go on the device in user space.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/cmd/softroce"
)

func main() { os.Exit(softroce.Main(os.Args[1:], os.Stdout, os.Stderr)) }
