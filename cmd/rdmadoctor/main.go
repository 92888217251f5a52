// Rdmadoctor says whether RDMA works on this machine, and if not, why and what
// to do.
package main

import (
	"os"

	"github.com/verbena-go/verbena/internal/doctor"
)

func main() { os.Exit(doctor.Main(os.Args[1:], os.Stdout, os.Stderr)) }
