// SPDX-License-Identifier: Apache-2.0

// Counter uses atomic operations on remote memory. Clients take tickets from a
// counter in the server's memory, with an addition that returns the old value.
// So each number is taken once, without any work of the server's program.
//
//	counter -listen 192.0.2.1:7471
//	counter -n 5 192.0.2.1:7471
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

const counterSize = 8 // bytes, the size of every atomic operation

func main() {
	log.SetFlags(0)
	log.SetPrefix("counter: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471")
	tickets := flag.Uint("n", 1, "how many `tickets` to take")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: counter -listen address\n       counter [-n tickets] address")
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
		err = take(ctx, flag.Arg(0), *tickets)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve offers the counter until ctx ends.
func serve(ctx context.Context, address string) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	// All connections share one protection domain and the one counter in it.
	device, err := ln.Device()
	if err != nil {
		return err
	}
	pd, err := device.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	counter, err := pd.Alloc(counterSize, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteAtomic)
	if err != nil {
		return err
	}
	defer counter.Close()
	offer, err := counter.Remote().MarshalBinary()
	if err != nil {
		return err
	}
	fmt.Println("listening on", ln.Addr())
	err = ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
		conn, err := req.Accept(ctx, &rdmacm.Config{PD: pd, PrivateData: offer})
		if err == nil {
			err = conn.Wait(ctx) // waits until the client closes the connection
			conn.Close()
		}
		if err != nil && ctx.Err() == nil {
			log.Printf("client %v: %v", req.RemoteAddr(), err)
		}
	})
	// All connections are closed: the device no longer uses the memory.
	fmt.Println("tickets taken:", binary.NativeEndian.Uint64(counter.Bytes()))
	return err
}

// take takes tickets and prints their numbers.
func take(ctx context.Context, server string, tickets uint) error {
	conn, err := rdmacm.Dial(ctx, server, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	var counter ibverbs.RemoteBuffer
	if err := counter.UnmarshalBinary(conn.PeerData()); err != nil {
		return err
	}
	if counter.Len != counterSize {
		return errors.New("the server offers no counter")
	}
	before, err := conn.Alloc(counterSize, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	for range tickets {
		if err := conn.FetchAdd(ctx, counter, 1, before.All()); err != nil {
			return err
		}
		fmt.Println(binary.NativeEndian.Uint64(before.Bytes()))
	}
	return nil
}
