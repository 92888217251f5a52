// Rping tests an RDMA connection with reads and writes, as the program of the
// same name in rdma-core does, with which it works together.
//
// The client offers a buffer with a text; the server reads it, then writes it
// to a second buffer of the client's. Both say so with messages of 16 bytes.
package main

import (
	"context"
	"errors"
	"fmt"
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

Example: rping -s -P -v   and   rping -c -a 192.0.2.1 -v -C 10
`

func main() {
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, errHelp):
		fmt.Printf(usage, minSize, maxSize)
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "rping:", err)
		os.Exit(int(syscall.EINVAL))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, o); {
	case err == nil:
	case ctx.Err() != nil && o.persistent: // which is how it ends
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "rping: interrupted")
		os.Exit(128 + int(syscall.SIGINT))
	default:
		fmt.Fprintln(os.Stderr, "rping:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options) error {
	if o.server {
		return runServer(ctx, o)
	}
	return runClient(ctx, o)
}
