// SPDX-License-Identifier: Apache-2.0

// Verbena checks, lists, watches and measures RDMA devices, and runs programs
// on the device in user space. Each of its commands is a package in internal;
// verbena -h lists them.
package main

import (
	"os"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/agent"
	"github.com/verbena-go/verbena/cmd/verbena/internal/devices"
	"github.com/verbena-go/verbena/cmd/verbena/internal/doctor"
	"github.com/verbena-go/verbena/cmd/verbena/internal/fabric"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf"
	"github.com/verbena-go/verbena/cmd/verbena/internal/ping"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest"
	"github.com/verbena-go/verbena/cmd/verbena/internal/soft"
	"github.com/verbena-go/verbena/cmd/verbena/internal/stat"
	"github.com/verbena-go/verbena/cmd/verbena/internal/watch"
)

func main() { os.Exit(commands().Main(os.Args[1:], os.Stdout, os.Stderr)) }

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
			{Name: "doctor", Program: doctor.Program},
			{Name: "devices", Program: devices.Program},
			{Name: "selftest", Program: selftest.Program},
			{Name: "ping", Program: ping.Program},
			{Name: "perf", Program: perf.Program},
			{Name: "agent", Program: agent.Program},
			{Name: "watch", Program: watch.Program},
			{Name: "stat", Program: stat.Program},
			{Name: "fabric", Commands: fabric.Commands()},
			{Name: "softroce", Commands: soft.Commands()},
		},
	}
	all.All = append(all.All,
		program.Command{Name: "completion", Program: func() *program.Program { return completion(all) }},
		program.Command{Name: "man", Program: func() *program.Program { return man(all) }})
	return all
}
