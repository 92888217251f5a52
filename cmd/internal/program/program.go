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

// The exit statuses of all programs, except the one for wrong arguments.
const (
	exitFailed      = 1
	exitInterrupted = 128 + int(syscall.SIGINT)
)

// Program is a program that has flags and operands.
type Program struct {
	Name     string
	Summary  string    // what the program does, in one line, if it is one of several commands
	Usage    string    // one line for each way to run the program, without "usage:"
	Text     string    // text that -h prints after the flags: what the program does, and an example
	Misused  int       // exit status for wrong arguments; 0 means 1
	Operands []*string // variables for the arguments that are not flags; any of these arguments may be missing
	Words    []string  // possible words for the first operand, for completion; nil means a file or anything else
	Rest     *[]string // if not nil, gets all arguments from the first one that is not a flag, instead of Operands
	Flags    func(*Flags)
	Run      func(context.Context, Output) error
}

// misuse is an error of the arguments.
type misuse struct{ text string }

func (e *misuse) Error() string { return e.text }

// Misuse returns an error for Run to return if the arguments cannot be used
// together. Main then returns the exit status for wrong arguments.
func Misuse(format string, args ...any) error { return &misuse{fmt.Sprintf(format, args...)} }

// failure is an error with an exit status of its own.
type failure struct {
	error
	status int
}

func (e *failure) Unwrap() error { return e.error }

// Failure returns an error for Run to return, with which the exit status of
// Main is not 1 but another.
func Failure(status int, err error) error { return &failure{err, status} }

// linger is how long Main waits for Run after an interrupt. During this time,
// Run may be closing objects; the kernel may take a minute to close a queue
// pair.
const linger = 10 * time.Second

// Main runs the program with the arguments that follow its name, and returns
// its exit status. The context that Run gets ends with the first SIGINT or
// SIGTERM; the second signal ends the process. If the program is meant to end
// with an interrupt, Run returns nil. If Run does not return within ten seconds
// after the interrupt, Main returns without waiting longer. If the program's
// output cannot be written, Main reports a failure, whatever Run returns.
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
		fmt.Fprintf(stderr, "%s: interrupted, and %v\n", p.Name, err)
		return exitInterrupted
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", p.Name)
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	if f, special := errors.AsType[*failure](err); special {
		return f.status
	}
	return exitFailed
}

// errLingers reports that Run has not returned in time after an interrupt.
var errLingers = errors.New("the system has not closed everything yet")

// runUntil calls Run, and stops waiting for it when linger has passed since the
// end of ctx.
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

// Parse sets the variables of the flags and operands. Main calls it.
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
		if operand == "" { // not the same as none: a variable of the shell may be empty
			return fmt.Errorf("argument %d is empty", i+1)
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
