// SPDX-License-Identifier: Apache-2.0

// Valkey is a client of Valkey over RDMA: it runs a command, prints the
// messages of a channel, or compares RDMA with TCP.
//
//	valkey 192.0.2.1:6379 set key value
//	valkey 192.0.2.1:6379 subscribe news
//	valkey -bench 192.0.2.1:6379
//
// It is a module of its own, so that Verbena does not depend on clients of
// Valkey. A program needs package valkeyrdma, and what this one has in
// newClient: a function that dials. The server is one with its RDMA module:
//
//	valkey-server --loadmodule valkey-rdma.so --rdma-port 6379 --rdma-bind 192.0.2.1
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/valkey-io/valkey-go"

	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("valkey: ")
	bench := flag.Bool("bench", false, "compare RDMA with TCP")
	turns := flag.Int("turns", 5, "with -bench: `times` to measure each of both")
	program := flag.String("benchmark", "", "with -bench: also measure with this `program`, which is valkey-benchmark, over TCP")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: valkey address command [argument...]\n       valkey address subscribe channel\n       valkey -bench [-turns times] [-benchmark program] address")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *bench && flag.NArg() == 1 && *turns > 0:
		err = compare(ctx, flag.Arg(0), *turns, *program)
	case !*bench && flag.NArg() == 3 && strings.EqualFold(flag.Arg(1), "subscribe"):
		err = subscribe(ctx, flag.Arg(0), flag.Arg(2))
	case !*bench && flag.NArg() >= 2:
		err = run(ctx, flag.Arg(0), flag.Args()[1:])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// newClient returns a client that dials over RDMA.
func newClient(address string) (valkey.Client, error) {
	return valkey.NewClient(valkey.ClientOption{
		InitAddress:       []string{address},
		ForceSingleClient: true, // a replica or another node of a cluster may have TCP alone
		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return valkeyrdma.Dial(ctx, "rdma", address)
		},
	})
}

// run runs a command and prints its reply.
func run(ctx context.Context, address string, command []string) error {
	client, err := newClient(address)
	if err != nil {
		return err
	}
	defer client.Close()
	reply, err := client.Do(ctx, client.B().Arbitrary(command[0]).Args(command[1:]...).Build()).ToAny()
	if valkey.IsValkeyNil(err) {
		fmt.Println("nil")
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println(reply)
	return nil
}

// subscribe prints the messages of a channel until ctx ends.
func subscribe(ctx context.Context, address, channel string) error {
	client, err := newClient(address)
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.Receive(valkey.WithOnSubscriptionHook(ctx, func(s valkey.PubSubSubscription) {
		fmt.Println("subscribed to", s.Channel)
	}), client.B().Subscribe().Channel(channel).Build(), func(m valkey.PubSubMessage) {
		fmt.Println(m.Message)
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
