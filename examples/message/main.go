// SPDX-License-Identifier: Apache-2.0

// Message exchanges messages: a client sends requests, and the server answers
// each with its text in capitals.
//
//	message -listen 192.0.2.1:7471
//	message 192.0.2.1:7471 hello world
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

const maxMessage = 4096

func main() {
	log.SetFlags(0)
	log.SetPrefix("message: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471 or :7471")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: message -listen address\n       message address text...")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		err = serve(ctx, *listen)
	case *listen == "" && flag.NArg() >= 2:
		err = ask(ctx, flag.Arg(0), flag.Args()[1:])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve serves clients until ctx ends.
func serve(ctx context.Context, address string) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
		if err := answer(ctx, req); err != nil && ctx.Err() == nil {
			log.Printf("client %v: %v", req.RemoteAddr(), err)
		}
	})
}

// answer answers the requests of one client until the client closes the
// connection.
func answer(ctx context.Context, req *rdmacm.Request) error {
	conn, err := req.Accept(ctx, &rdmacm.Config{MessageSize: maxMessage})
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := conn.Alloc(maxMessage, 0)
	if err != nil {
		return err
	}
	for request, err := range conn.Messages(ctx) { // until the client has closed the connection
		if err != nil {
			return err
		}
		n := copy(reply.Bytes(), bytes.ToUpper(request.Data))
		if err := conn.Send(ctx, reply.Sub(0, n)); err != nil {
			return err
		}
	}
	return nil
}

// ask sends requests, one after the other, and prints the replies.
func ask(ctx context.Context, server string, texts []string) error {
	conn, err := rdmacm.Dial(ctx, server, &rdmacm.Config{MessageSize: maxMessage})
	if err != nil {
		return err
	}
	defer conn.Close()
	request, err := conn.Alloc(maxMessage, 0)
	if err != nil {
		return err
	}
	for _, text := range texts {
		if len(text) > maxMessage {
			return fmt.Errorf("text of %d bytes: a message holds at most %d", len(text), maxMessage)
		}
		n := copy(request.Bytes(), text)
		if err := conn.Send(ctx, request.Sub(0, n)); err != nil {
			return err
		}
		reply, err := conn.Receive(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", reply.Data)
	}
	return conn.Shutdown(ctx) // blocks until the server knows; then this program may exit
}
