// Package rdmadoctor is the program rdmadoctor, apart from its main function, so
// that tests can run it.
package rdmadoctor

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/verbena-go/verbena/internal/cmd/program"
	"github.com/verbena-go/verbena/internal/cmd/rdmadoctor/diagnose"
)

// Main runs rdmadoctor and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	var asJSON bool
	var peer diagnose.Peer
	p := &program.Program{
		Name:  "rdmadoctor",
		Usage: "rdmadoctor [-j] [-p port] [host]",
		Text: `
Says whether RDMA works on this machine, and if not, why and what to do. Each
check prints a line: ok; warn, if RDMA works but not for everything; FAIL; or
skip, if it could not look. Under what is not ok, "do" says what to do and "run"
what to enter into a shell, as root. In the end each device connects to itself,
sends a message and writes to memory.

With a host, it checks the way there, too: which device leads to it, and whether
its connection manager answers. Nothing needs to run there: the refusal of a
connection to a port without a server is an answer. With -p a server must listen
at the port, which sees a connection that ends at once.

It changes nothing. Run it as the user, and in the container, that RDMA does not
work for: permissions and limits are theirs.

Exit status: 0 if no check failed; 1 if one did, or if the arguments are wrong.

Example: rdmadoctor   and   rdmadoctor -p 7471 192.0.2.1`,
		Operand: &peer.Host,
		Flags: func(f *program.Flags) {
			f.JSON(&asJSON)
			f.Port(&peer.Port, "`port` of the host at which a server must listen")
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
				return fmt.Errorf("RDMA does not work %s: mend what failed first, and look again", place(peer))
			}
			return nil
		},
	}
	return p.Main(args, stdout, stderr)
}

func check(peer diagnose.Peer) error {
	if peer.Host == "" && peer.Port != 0 {
		return program.Misuse("-p without a host")
	}
	if host, port, err := net.SplitHostPort(peer.Host); err == nil {
		return program.Misuse("the port is a flag: -p %s %s", port, host)
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
