// Package doctor is the program rdmadoctor, apart from its main function, so
// that tests can run it.
package doctor

import (
	"context"
	"errors"
	"io"

	"github.com/verbena-go/verbena/internal/diagnose"
	"github.com/verbena-go/verbena/internal/program"
)

// Main runs rdmadoctor and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	var asJSON bool
	p := &program.Program{
		Name:  "rdmadoctor",
		Usage: "rdmadoctor [-j]",
		Text: `
Says whether RDMA works on this machine, and if not, why and what to do. Each
check prints a line: ok; warn, if RDMA works but not for everything; FAIL; or
skip, if it could not look. Under what is not ok, "do" says what to do and "run"
what to enter into a shell, as root. In the end each device connects to itself,
sends a message and writes to memory.

It changes nothing. Run it as the user, and in the container, that RDMA does not
work for: permissions and limits are theirs.

Exit status: 0 if no check failed; 1 if one did, or if the arguments are wrong.

Example: rdmadoctor -j`,
		Flags: func(f *program.Flags) { f.JSON(&asJSON) },
		Run: func(ctx context.Context, out program.Output) error {
			report := diagnose.Run(ctx)
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := write(out, report, asJSON); err != nil {
				return err
			}
			if !report.Works {
				return errors.New("RDMA does not work here: mend what failed first, and look again")
			}
			return nil
		},
	}
	return p.Main(args, stdout, stderr)
}

func write(out program.Output, report diagnose.Report, asJSON bool) error {
	if asJSON {
		return out.JSON(report)
	}
	report.Text(out.Stdout)
	return nil
}
