// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

// The exit statuses of all programs, but for that of wrong arguments.
const (
	exitFailed      = 1
	exitInterrupted = 128 + int(syscall.SIGINT)
)

// Program is one that is started with arguments.
type Program struct {
	Name     string
	Summary  string    // what it does, in a line, where it is one of several
	Usage    string    // a line for each way to start it, without "usage:"
	Text     string    // what -h prints after the flags: what the program does, and an example
	Misused  int       // the exit status for wrong arguments; 0: 1
	Operands []*string // take the arguments that are no flags, which may be missing
	Words    []string  // what the first operand may be, for completion; nil: a file or anything else
	Rest     *[]string // takes all arguments from the first one that is not a flag, instead of Operands
	Flags    func(*Flags)
	Run      func(context.Context, Output) error
}

// misuse is what is wrong with the arguments.
type misuse struct{ text string }

func (e *misuse) Error() string { return e.text }

// Misuse returns an error with which Run says that the arguments do not go
// together.
func Misuse(format string, args ...any) error { return &misuse{fmt.Sprintf(format, args...)} }

// linger is how long after an interrupt Run may go on closing what it has. The
// kernel may take a minute for a queue pair.
const linger = 10 * time.Second

// Main runs the program with its arguments, those after its name, and returns
// its exit status. The context that Run gets ends with the first SIGINT or
// SIGTERM; the second one ends the program. Where that is how the program is
// meant to end, Run returns nil. If Run does not return within ten seconds of
// that, Main does without it. A program whose output cannot be written has
// failed, whatever Run returns.
func (p *Program) Main(args []string, stdout, stderr io.Writer) int {
	return written(p.Name, stdout, stderr, func(stdout io.Writer) int { return p.main(args, stdout, stderr) })
}

func (p *Program) main(args []string, stdout, stderr io.Writer) int {
	err := p.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		p.help(stdout)
		return 0
	case err != nil:
		return p.misused(stderr, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	err = p.runUntil(ctx, Output{stdout, stderr})
	if _, wrong := errors.AsType[*misuse](err); wrong {
		return p.misused(stderr, err)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errLingers):
		fmt.Fprintf(stderr, "%s: interrupted, %v\n", p.Name, err)
		return exitInterrupted
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", p.Name)
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	return exitFailed
}

// errLingers says that Run has not returned.
var errLingers = errors.New("and the system has not closed everything yet")

// runUntil calls Run, for which it waits only so long after ctx has ended.
func (p *Program) runUntil(ctx context.Context, out Output) error {
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, out) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(linger):
		return errLingers
	}
}

// Parse sets what the flags are for. It is part of Main.
func (p *Program) Parse(args []string) error {
	flags := newFlags(p.Name)
	p.Flags(flags)
	flags.SetInterspersed(p.Rest == nil)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if p.Rest != nil {
		*p.Rest = flags.Args()
		return nil
	}
	for i, operand := range flags.Args() {
		if i >= len(p.Operands) {
			return fmt.Errorf("unexpected argument %q", operand)
		}
		*p.Operands[i] = operand
	}
	return nil
}

func (p *Program) misused(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "%s: %v; -h lists the flags\n", p.Name, err)
	return max(p.Misused, exitFailed)
}

func (p *Program) help(stdout io.Writer) {
	flags := newFlags(p.Name)
	p.Flags(flags)
	fmt.Fprintf(stdout, "%s\n\n%s\n%s\n", strings.TrimSpace(p.Usage), flags.FlagUsages(), strings.TrimSpace(p.Text))
}
