// SPDX-License-Identifier: Apache-2.0

// Manyclients connects a thousand clients to a server at the same time. They
// need no threads of their own: goroutines wait for them.
//
//	manyclients -listen 192.0.2.1:7471
//	manyclients -n 1000 192.0.2.1:7471
//
// The second command runs all clients in one process. When all are connected,
// each sends a message and waits for the answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

const atOnce = 32 // clients connecting or closing at the same time

func main() {
	log.SetFlags(0)
	log.SetPrefix("manyclients: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471 or :7471")
	n := flag.Uint("n", 1000, "`number` of clients")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: manyclients -listen address\n       manyclients [-n number] address")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		err = serve(ctx, *listen)
	case *listen == "" && flag.NArg() == 1:
		err = connect(ctx, flag.Arg(0), int(*n))
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// threads returns how many threads this process has.
func threads() int {
	tasks, _ := os.ReadDir("/proc/self/task")
	return len(tasks)
}

// serve serves clients until ctx ends.
func serve(ctx context.Context, address string) error {
	ln, err := rdmacm.Listen(ctx, address, &rdmacm.ListenConfig{Backlog: 1024})
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	var clients atomic.Int64
	return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
		if n := clients.Add(1); n%100 == 0 {
			fmt.Printf("%d clients, %d threads\n", n, threads())
		}
		defer clients.Add(-1)
		if err := answer(ctx, req); err != nil && ctx.Err() == nil {
			log.Printf("client %v: %v", req.RemoteAddr(), err)
		}
	})
}

// answer sends back the number in each of a client's messages.
func answer(ctx context.Context, req *rdmacm.Request) error {
	var messages *rdmacm.Receiver
	conn, err := req.Accept(ctx, &rdmacm.Config{SendQueue: 1, RecvQueue: 1, Setup: func(c *rdmacm.Conn) (err error) {
		messages, err = c.NewReceiver(0)
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		m, err := messages.Next(ctx)
		if errors.Is(err, syscall.ECONNRESET) {
			return nil // the client has closed the connection
		}
		if err != nil {
			return err
		}
		number, _ := m.Imm()
		if err := conn.SendImm(ctx, number); err != nil {
			return err
		}
	}
}

// connect connects n clients, has each of them ask, and closes them.
func connect(ctx context.Context, server string, n int) error {
	clients := make([]*rdmacm.Conn, n)
	defer func() {
		_ = each(n, atOnce, func(i int) error {
			if clients[i] != nil {
				clients[i].Close()
			}
			return nil
		})
	}()
	start := time.Now()
	err := each(n, atOnce, func(i int) (err error) {
		clients[i], err = rdmacm.Dial(ctx, server, &rdmacm.Config{SendQueue: 1, RecvQueue: 1})
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d clients connected in %v, %d threads\n", n, time.Since(start).Round(time.Millisecond), threads())
	start = time.Now()
	if err := each(n, n, func(i int) error { return ask(ctx, clients[i], uint32(i)) }); err != nil {
		return err
	}
	fmt.Printf("%d clients answered in %v, %d threads\n", n, time.Since(start).Round(time.Millisecond), threads())
	return nil
}

// ask sends a number and waits for the server to send it back.
func ask(ctx context.Context, conn *rdmacm.Conn, number uint32) error {
	answer, err := conn.PostRecv()
	if err != nil {
		return err
	}
	if err := conn.SendImm(ctx, number); err != nil {
		return err
	}
	if _, err := answer.Wait(ctx); err != nil {
		return err
	}
	if got, _ := answer.Imm(); got != number {
		return fmt.Errorf("client %d: the answer was for %d", number, got)
	}
	return nil
}

// each calls f with each number below n, up to atOnce of them at the same time.
// If f returns an error, each makes no more calls and returns it.
func each(n, atOnce int, f func(i int) error) error {
	var next atomic.Int64
	var running sync.WaitGroup
	errs := make(chan error, atOnce)
	for range atOnce {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					next.Store(int64(n))
					errs <- err
					return
				}
			}
		})
	}
	running.Wait()
	close(errs)
	return <-errs // nil if there is none
}
