// SPDX-License-Identifier: Apache-2.0

// Table reads remote memory: the server holds a table of square roots, and
// tells each client in its private data where the table is. Clients read rows
// without the help of the server's program.
//
//	table -listen 192.0.2.1:7471
//	table 192.0.2.1:7471 2 9 999
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

const (
	rows    = 100_000
	rowSize = 64 // text, then zeros
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("table: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: table -listen address\n       table address row...")
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
		err = read(ctx, flag.Arg(0), flag.Args()[1:])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve offers the table until ctx ends.
func serve(ctx context.Context, address string) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	// All connections share one protection domain, so that the table is registered
	// once and has one key.
	device, err := ln.Device()
	if err != nil {
		return err
	}
	pd, err := device.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	table, err := pd.Alloc(rows*rowSize, ibverbs.AccessRemoteRead)
	if err != nil {
		return err
	}
	defer table.Close()
	for i := range rows {
		copy(table.Bytes()[i*rowSize:], fmt.Sprintf("the square root of %d is %.6f", i, math.Sqrt(float64(i))))
	}
	offer, err := table.Remote().MarshalBinary()
	if err != nil {
		return err
	}
	fmt.Println("listening on", ln.Addr())
	return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
		conn, err := req.Accept(ctx, &rdmacm.Config{PD: pd, PrivateData: offer})
		if err == nil {
			err = conn.Wait(ctx) // waits until the client closes the connection; reads need nothing from this program
			conn.Close()
		}
		if err != nil && ctx.Err() == nil {
			log.Printf("client %v: %v", req.RemoteAddr(), err)
		}
	})
}

// read reads rows and prints them.
func read(ctx context.Context, server string, numbers []string) error {
	conn, err := rdmacm.Dial(ctx, server, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	var table ibverbs.RemoteBuffer
	if err := table.UnmarshalBinary(conn.PeerData()); err != nil {
		return err
	}
	// On iWARP, the memory of a read needs remote write access, too.
	row, err := conn.Alloc(rowSize, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	for _, text := range numbers {
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return fmt.Errorf("row %q: %w", text, err)
		}
		if number >= table.Len/rowSize {
			return fmt.Errorf("row %d: the table has %d", number, table.Len/rowSize)
		}
		if err := conn.Read(ctx, row.All(), table.Sub(number*rowSize, rowSize)); err != nil {
			return err
		}
		fmt.Printf("%s\n", bytes.TrimRight(row.Bytes(), "\x00"))
	}
	return conn.Shutdown(ctx) // blocks until the server knows; then this program may exit
}
