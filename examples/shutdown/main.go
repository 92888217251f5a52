// SPDX-License-Identifier: Apache-2.0

// Shutdown shows how a server exits without abandoning work. When it is
// interrupted, it accepts no more clients, finishes the requests it has begun,
// tells the clients to go, and closes everything. It cuts off work that takes
// longer than a grace period.
//
//	shutdown -listen 192.0.2.1:7471 -work 2s -grace 10s
//	shutdown 192.0.2.1:7471
//
// A client sends one request after the other until the server says goodbye. The
// server has either answered each request before that, or not begun it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

// The server's messages, as immediate data.
const (
	done    = 1 // the request is done
	goodbye = 2
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("shutdown: ")
	var s server
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471 or :7471")
	flag.DurationVar(&s.work, "work", time.Second, "how long each request takes")
	flag.DurationVar(&s.grace, "grace", 10*time.Second, "how long work may continue after an interrupt")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: shutdown -listen address [-work time] [-grace time]\n       shutdown address")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		err = s.serve(ctx, stop, *listen)
	case *listen == "" && flag.NArg() == 1:
		err = ask(ctx, flag.Arg(0))
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

type server struct {
	work, grace time.Duration
	done        atomic.Int64 // number of requests that are done
}

// serve serves clients. When ctx ends, serve accepts no more clients, and waits
// until all clients are gone. stop restores the default behavior of signals.
func (s *server) serve(ctx context.Context, stop func(), address string) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	// Work that has begun continues after ctx ends, until the grace period is
	// over.
	underWay, cutOff := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutOff(nil)
	finished := make(chan error, 1)
	ctx, end := context.WithCancel(ctx)
	go func() {
		defer end() // the listener may have failed
		finished <- ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
			if err := s.answer(ctx, underWay, req); err != nil {
				log.Printf("client %v: %v", req.RemoteAddr(), err)
			}
		})
	}()

	<-ctx.Done()
	stop() // so that a second interrupt ends the program at once
	fmt.Println("shutting down")
	ln.Close() // refuses further clients, which may look for another server
	timer := time.AfterFunc(s.grace, func() { cutOff(fmt.Errorf("cut off after %v", s.grace)) })
	defer timer.Stop()
	err = <-finished // waits until all clients are gone
	fmt.Println("requests done:", s.done.Load())
	if err == nil {
		err = context.Cause(underWay) // nil if nothing was cut off
	}
	return err
}

// answer does one client's requests. After ctx ends it begins no more requests
// and says goodbye.
func (s *server) answer(ctx, underWay context.Context, req *rdmacm.Request) error {
	var requests *rdmacm.Receiver
	conn, err := req.Accept(underWay, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		requests, err = c.NewReceiver(0)
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		_, err := requests.Next(ctx)
		switch {
		case errors.Is(err, syscall.ECONNRESET):
			return nil // the client has closed the connection
		case ctx.Err() != nil:
			if err := conn.SendImm(underWay, goodbye); err != nil {
				return err
			}
			return conn.Wait(underWay) // until the client closes; its device may still need an answer from this one
		case err != nil:
			return err
		}
		fmt.Println("working for", conn.RemoteAddr())
		select {
		case <-time.After(s.work): // stands for the work of a request
		case <-conn.Done():
			return conn.Err()
		case <-underWay.Done():
			return context.Cause(underWay)
		}
		if err := conn.SendImm(underWay, done); err != nil {
			return err
		}
		s.done.Add(1)
	}
}

// ask sends requests until the server says goodbye.
func ask(ctx context.Context, address string) error {
	conn, err := rdmacm.Dial(ctx, address, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers, err := conn.NewReceiver(0)
	if err != nil {
		return err
	}
	for request := 1; ; request++ {
		if err := conn.Send(ctx); err != nil {
			return err
		}
		answer, err := answers.Next(ctx)
		if err != nil {
			return fmt.Errorf("request %d may or may not be done: %w", request, err)
		}
		if code, _ := answer.Imm(); code == goodbye {
			fmt.Printf("the server ends; request %d is for another one\n", request)
			return nil
		}
		fmt.Printf("request %d is done\n", request)
	}
}
