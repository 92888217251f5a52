// SPDX-License-Identifier: Apache-2.0

// Proxy lets programs that know only TCP use RDMA. Two proxies run between a
// client and a server. For each TCP connection of the client, the first proxy
// makes an RDMA connection to the second one, which makes a TCP connection to
// the server. If one of the programs uses package rsocket, or C's rsockets, one
// proxy is enough.
//
//	proxy -listen rdma:192.0.2.1:7471 -to tcp:127.0.0.1:6379     beside the server
//	proxy -listen tcp:127.0.0.1:6379 -to rdma:192.0.2.1:7471     beside the client
//
// Each direction of a connection can end by itself, and the proxies pass that
// on. They also pass on that a connection has failed, so that neither side
// takes a failure for an orderly end.
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
	"strings"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/rsocket"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

// place is an address in a network, which is tcp or rdma.
type place struct{ network, address string }

func (p *place) String() string { return p.network + ":" + p.address }

// Set parses the value of a flag; see flag.Value.
func (p *place) Set(text string) error {
	var ok bool
	p.network, p.address, ok = strings.Cut(text, ":")
	if !ok || p.network != "tcp" && p.network != "rdma" {
		return errors.New("expected tcp: or rdma: and an address")
	}
	return nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("proxy: ")
	var from, to place
	flag.Var(&from, "listen", "`place` to listen at, such as tcp:127.0.0.1:6379 or rdma:192.0.2.1:7471")
	flag.Var(&to, "to", "`place` to connect to for each client")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: proxy -listen place -to place")
		flag.PrintDefaults()
	}
	flag.Parse()
	if from.address == "" || to.address == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, from, to); err != nil {
		log.Fatal(err)
	}
}

// listen listens at a place.
func (p *place) listen(ctx context.Context) (net.Listener, error) {
	if p.network == "rdma" {
		return new(rsocket.ListenConfig).Listen(ctx, p.network, p.address)
	}
	return new(net.ListenConfig).Listen(ctx, p.network, p.address)
}

// dial connects to a place.
func (p *place) dial(ctx context.Context) (net.Conn, error) {
	if p.network == "rdma" {
		return new(rsocket.Dialer).DialContext(ctx, p.network, p.address)
	}
	return new(net.Dialer).DialContext(ctx, p.network, p.address)
}

// serve serves clients until ctx ends, which breaks their connections.
func serve(ctx context.Context, from, to place) error {
	ln, err := from.listen(ctx)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var clients sync.WaitGroup
	defer clients.Wait() // waits until they have closed their connections
	for {
		client, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				client.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		clients.Go(func() {
			if err := relay(ctx, client.(half), to); err != nil && ctx.Err() == nil {
				log.Printf("client %v: %v", client.RemoteAddr(), err)
			}
		})
	}
}

// half is a connection whose directions can be closed separately. *net.TCPConn
// and *rsocket.Conn are such connections.
type half interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
}

// relay copies the data of the client to a connection to the place, and back.
func relay(ctx context.Context, client half, to place) error {
	defer client.Close()
	conn, err := to.dial(ctx)
	if err != nil {
		return errors.Join(err, client.SetLinger(0)) // so that Close below does not look like an answer
	}
	server := conn.(half)
	defer server.Close()
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	reset := func() {
		for _, c := range []half{client, server} {
			c.SetLinger(0) // tells the peer that this is no orderly end
			c.Close()
		}
	}
	stop := context.AfterFunc(ctx, reset)
	var directions sync.WaitGroup
	for _, d := range []struct{ from, to half }{{client, server}, {server, client}} {
		directions.Go(func() {
			_, err := io.Copy(d.to, d.from) // copies from and to memory that the device uses
			if err == nil {
				err = d.to.CloseWrite()
			}
			if err != nil {
				broken(err) // ends the other direction
			}
		})
	}
	directions.Wait()
	if err := context.Cause(ctx); err != nil {
		reset() // both directions may have ended before AfterFunc has called it
		return err
	}
	stop()
	return nil
}
