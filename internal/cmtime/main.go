// Package cmtime is the program of the same name, apart from its main function,
// so that tests can run it: it times the steps of many connections, all of which
// take each step together.
package cmtime

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
)

const usage = `cmtime [-b addr] [-p port]
cmtime -s addr [-b addr] [-c connections] [-p port] [-r retries] [-t ms]
	-s addr		address of the server; without it this is the server
	-b addr		address to connect from, or to listen on (default: the system's choice, or all)
	-c connections	how many (default 100)
	-p port		port (default 7471)
	-r retries	how often resolving is tried again (default 2)
	-t ms		how long resolving may take (default 2000)
	-h		print this

The client prints a line for each step: the time in which all connections took
it, the mean of that, and of the single connections' times the shortest, the
mean, three percentiles and the longest. C's cmtime may be at the other end.

Exit status: 0 if all went well, or if a server was interrupted; 1 if something
failed; 22 if the arguments are wrong.

Example: cmtime   and   cmtime -s 192.0.2.1 -c 1000
`

const (
	exitFailed = 1
	exitUsage  = int(syscall.EINVAL)
)

type options struct {
	server, bind netip.Addr // not valid: not given
	connections  int
	port         uint16
	retries      int
	timeout      time.Duration
	stdout       io.Writer
}

func parse(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("cmtime", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.TextVar(&o.server, "s", netip.Addr{}, "")
	flags.TextVar(&o.bind, "b", netip.Addr{}, "")
	flags.IntVar(&o.connections, "c", 100, "")
	port := flags.Uint("p", 7471, "")
	flags.IntVar(&o.retries, "r", 2, "")
	milliseconds := flags.Uint("t", 2000, "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.connections < 1 || o.connections > 1<<20:
		return nil, fmt.Errorf("-c %d: expected a number from 1 to %d", o.connections, 1<<20)
	case *port < 1 || *port > 65535:
		return nil, fmt.Errorf("-p %d: expected a number from 1 to 65535", *port)
	case o.retries < 0 || o.retries > 7:
		return nil, fmt.Errorf("-r %d: expected a number from 0 to 7", o.retries)
	case *milliseconds < 1 || *milliseconds > 1<<20:
		return nil, fmt.Errorf("-t %d: expected a number from 1 to %d", *milliseconds, 1<<20)
	}
	o.port, o.timeout = uint16(*port), time.Duration(*milliseconds)*time.Millisecond
	return o, nil
}

// Main runs cmtime and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "cmtime:", err)
		return exitUsage
	}
	o.stdout = stdout
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = run(ctx, o)
	switch {
	case err == nil, ctx.Err() != nil && !o.server.IsValid():
		return 0
	default:
		fmt.Fprintln(stderr, "cmtime:", err)
		return exitFailed
	}
}

func run(ctx context.Context, o *options) (err error) {
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	if o.server.IsValid() {
		return (&client{options: o, channel: ch}).run(ctx)
	}
	return (&server{options: o, channel: ch}).run(ctx)
}
