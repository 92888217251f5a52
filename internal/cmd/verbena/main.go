// SPDX-License-Identifier: Apache-2.0

// Package verbena is the program of the same name, apart from its main function, so that tests can run it: one program for
// all that people do with RDMA at a shell, whose commands are packages of their own.
package verbena

import (
	"io"

	"github.com/verbena-go/verbena/internal/cmd/ping"
	"github.com/verbena-go/verbena/internal/cmd/program"
	"github.com/verbena-go/verbena/internal/cmd/rdmadevices"
	"github.com/verbena-go/verbena/internal/cmd/rdmadoctor"
	"github.com/verbena-go/verbena/internal/cmd/rdmaperf"
	"github.com/verbena-go/verbena/internal/cmd/rdmastat"
	"github.com/verbena-go/verbena/internal/cmd/rdmawatch"
	"github.com/verbena-go/verbena/internal/cmd/softroce"
)

// Main runs verbena and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int { return commands().Main(args, stdout, stderr) }

func commands() *program.Commands {
	all := &program.Commands{
		Name: "verbena", Summary: "RDMA at a shell: check, list, watch, ping and measure", Version: version,
		Text: `
verbena COMMAND -h, or verbena help COMMAND, says more about a command.

With VERBENA_DEVICE=soft in the environment, all of them use the device in user
space, which every machine has, instead of the machine's devices.

Exit status: 0 on success; 1 if something failed; 2 for wrong arguments; 130 if
interrupted before the end. Commands say where theirs differs.

Example: verbena doctor`,
		All: []program.Command{
			{Name: "doctor", Program: rdmadoctor.Program},
			{Name: "devices", Program: rdmadevices.Program},
			{Name: "ping", Program: ping.Program},
			{Name: "perf", Program: rdmaperf.Program},
			{Name: "watch", Program: rdmawatch.Program},
			{Name: "stat", Program: rdmastat.Program},
			{Name: "softroce", Commands: softroce.Commands()},
		},
	}
	all.All = append(all.All,
		program.Command{Name: "completion", Program: func() *program.Program { return completion(all) }},
		program.Command{Name: "man", Program: func() *program.Program { return man(all) }})
	return all
}
