// SPDX-License-Identifier: Apache-2.0

// Package doctor is the command verbena doctor. It finds out why RDMA does not
// work.
package doctor

import (
	"context"
	"fmt"
	"net"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/doctor/diagnose"
)

// Program returns the program of the command.
func Program() *program.Program {
	var asJSON bool
	var peer diagnose.Peer
	return &program.Program{
		Name: "verbena doctor", Summary: "find out why RDMA does not work here, or to a host", Misused: program.ExitMisused,
		Usage: "verbena doctor [-j] [-p port] [host]",
		Text: `
Checks whether RDMA works on this machine, and if not, says why and what to do.
Each check prints a line: ok; warn, if RDMA works but not for everything; FAIL;
or skip, if the check could not run. Under each line that is not ok, "do" says
what to do and "run" what to enter into a shell, as root. Finally, each device
connects to itself, sends a message and writes to memory.

With a host, it also checks the path to the host: which device leads to it, and
whether its connection manager answers. Nothing needs to run there: a refused
connection to a port without a server is an answer. With -p, a server must
listen at the port; it sees a connection that ends at once.

With VERBENA_DEVICE=soft in the environment, it checks the device in user space
that all of these commands have, and nothing of the machine's.

It changes nothing. Run it as the user and in the container for which RDMA does
not work: permissions and limits belong to them.

Exit status: 0 if no check failed; 1 if one did; 2 for wrong arguments.

Example: verbena doctor   and   verbena doctor -p 7471 192.0.2.1`,
		Operands: []*string{&peer.Host},
		Flags: func(f *program.Flags) {
			f.JSON(&asJSON)
			f.Port(&peer.Port, "`port` of the host on which a server listens")
		},
		Run: func(ctx context.Context, out program.Output) error {
			if err := check(peer); err != nil {
				return err
			}
			report := diagnose.Run(ctx, peer)
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := write(out, report, asJSON); err != nil {
				return err
			}
			if !report.Works {
				return fmt.Errorf("RDMA does not work %s: fix the first failure, and run verbena doctor again; "+
					"VERBENA_DEVICE=soft runs programs on a device in user space meanwhile", place(peer))
			}
			return nil
		},
	}
}

func check(peer diagnose.Peer) error {
	if peer.Host == "" && peer.Port != 0 {
		return program.Misuse("-p without a host")
	}
	if host, port, err := net.SplitHostPort(peer.Host); err == nil {
		return program.Misuse("pass the port as a flag: -p %s %s", port, host)
	}
	return nil
}

func place(peer diagnose.Peer) string {
	if peer.Host == "" {
		return "here"
	}
	return "from here to " + peer.Host
}

func write(out program.Output, report diagnose.Report, asJSON bool) error {
	if asJSON {
		return out.JSON(report)
	}
	report.Text(out.Stdout)
	return nil
}
