// SPDX-License-Identifier: Apache-2.0

// Grpc is a gRPC server and client over RDMA: gRPC runs on the connections of
// package rsocket as it does on TCP's. The client streams texts to the server,
// which streams each back in capitals.
//
//	grpc -listen 192.0.2.1:7471
//	grpc 192.0.2.1:7471 hello world
//
// It is a module of its own, so that Verbena does not depend on gRPC. A program
// needs what this one has in serve and ask: a listener, and a function that
// dials.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/verbena-go/verbena/rsocket"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("grpc: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471 or :7471")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: grpc -listen address\n       grpc address text...")
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

// grace is how long calls may take after an interrupt.
const grace = 10 * time.Second

// serve serves clients until ctx ends.
func serve(ctx context.Context, address string) error {
	ln, err := new(rsocket.ListenConfig).Listen(ctx, "rdma", address)
	if err != nil {
		return err
	}
	defer ln.Close()
	server := grpc.NewServer()
	server.RegisterService(&service, capitals{})
	fmt.Println("listening on", ln.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	timer := time.AfterFunc(grace, server.Stop)
	defer timer.Stop()
	server.GracefulStop() // returns when all connections are closed, so that this program may exit
	return <-ended
}

// ask asks the server to turn texts into capitals, and prints the answers.
func ask(ctx context.Context, address string, texts []string) (err error) {
	var d dialer
	client, err := grpc.NewClient("passthrough:///"+address, // rsocket looks the name up
		grpc.WithContextDialer(d.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer d.close()
	defer func() { err = errors.Join(err, client.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := upper(ctx, client)
	if err != nil {
		return err
	}
	for _, text := range texts {
		answer, err := stream.turn(text)
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the server has not ended the stream: %w", err)
	}
	return nil
}

// dialer dials for gRPC, and closes its connections at the end. gRPC closes
// them, too, but a program cannot wait for that. A program that exits with an
// open connection looks to its peer like one that was killed.
type dialer struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (d *dialer) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(rsocket.Dialer).DialContext(ctx, "rdma", address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conn)
	return conn, nil
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		conn.Close()
	}
}
