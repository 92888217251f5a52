// Package rping is the program of the same name, apart from its main function,
// so that tests can run it.
//
// The client offers a buffer with a text; the server reads it, then writes it
// to a second buffer of the client's. Both say so with messages of 16 bytes.
package rping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `rping -s [-vVdPq] [-S size] [-C count] [-a addr] [-p port]
rping -c [-vVdq] [-S size] [-C count] [-I addr] -a addr [-p port]
	-c		client
	-I addr		address to connect from (client)
	-s		server
	-P		serve any number of clients, at once and one after the other
	-v		print the data of each ping
	-V		verify the data of each ping
	-d		print each step
	-S size		bytes of each ping, from %d to %d (default 64)
	-C count	number of pings (default 0: until interrupted)
	-a addr		address of the server; for a server, the one to listen on (default: all)
	-p port		port (default 7174)
	-q		make the queue pair here, and move it through its states here
	-h		print this

Exit status: 0 if all went well, or if a server with -P was interrupted; 1 if
something failed; 22 if the arguments are wrong; 130 if interrupted.

Example: rping -s -P -v   and   rping -c -a 192.0.2.1 -v -C 10
`

// The exit statuses. C's rping has the second one too.
const (
	exitFailed      = 1
	exitUsage       = int(syscall.EINVAL)
	exitInterrupted = 128 + int(syscall.SIGINT)
)

// Main runs rping and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, errHelp):
		fmt.Fprintf(stdout, usage, minSize, maxSize)
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "rping:", err)
		return exitUsage
	}
	o.stdout, o.stderr = stdout, stderr
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err = run(ctx, o)
	switch {
	case err == nil:
		return 0
	case ctx.Err() == nil:
		fmt.Fprintln(stderr, "rping:", err)
		return exitFailed
	case o.server && o.persistent: // which is how it ends
		return 0
	}
	fmt.Fprintln(stderr, "rping: interrupted")
	return exitInterrupted
}

func run(ctx context.Context, o *options) error {
	if o.server {
		return runServer(ctx, o)
	}
	return runClient(ctx, o)
}
