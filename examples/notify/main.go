// SPDX-License-Identifier: Apache-2.0

// Notify uses RDMA writes with immediate data as notifications: a writer puts
// texts into a board's memory, and with each write tells the board where to
// look.
//
//	notify -listen 192.0.2.1:7471
//	notify 192.0.2.1:7471 first second
//
// The data arrives without any work of the board's program. The write ends with
// 32 bits of immediate data, which complete a receive at the board and so wake
// its program.
package main

import (
	"context"
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

// A board has fields of a fixed size. Each writer has its own board.
const (
	fields    = 16
	fieldSize = 256
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("notify: ")
	listen := flag.String("listen", "", "run the board at this `address`, such as 192.0.2.1:7471 or :7471")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: notify -listen address\n       notify address text...")
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
		err = write(ctx, flag.Arg(0), flag.Args()[1:])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve serves writers until ctx ends.
func serve(ctx context.Context, address string) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
		if err := watch(ctx, req); err != nil && ctx.Err() == nil {
			log.Printf("writer %v: %v", req.RemoteAddr(), err)
		}
	})
}

// watch gives a writer a board and prints what the writer puts on it.
func watch(ctx context.Context, req *rdmacm.Request) error {
	var board *ibverbs.MR
	var notifications *rdmacm.Receiver
	conn, err := req.Accept(ctx, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		if board, err = c.Alloc(fields*fieldSize, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err != nil {
			return err
		}
		if notifications, err = c.NewReceiver(0); err != nil {
			return err
		}
		offer, err := board.Remote().MarshalBinary()
		if err != nil {
			return err
		}
		return c.SetPrivateData(offer) // the writer learns where the board is
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		m, err := notifications.Next(ctx)
		if errors.Is(err, syscall.ECONNRESET) {
			return nil // the writer has closed the connection
		}
		if err != nil {
			return err
		}
		field, ok := m.Imm()
		n, _ := m.Written()
		if !ok || field >= fields || n > fieldSize {
			return fmt.Errorf("unexpected notification: %d bytes in field %d", n, field)
		}
		fmt.Printf("field %d: %s\n", field, board.Sub(int(field)*fieldSize, n).Bytes())
	}
}

// write writes each text into its own field.
func write(ctx context.Context, address string, texts []string) error {
	if len(texts) > fields {
		return fmt.Errorf("%d texts: the board has %d fields", len(texts), fields)
	}
	conn, err := rdmacm.Dial(ctx, address, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	var board ibverbs.RemoteBuffer
	if err := board.UnmarshalBinary(conn.PeerData()); err != nil {
		return err
	}
	if board.Len < fields*fieldSize {
		return fmt.Errorf("%v is not a board: it offers %d bytes", conn.RemoteAddr(), board.Len)
	}
	memory, err := conn.Alloc(fieldSize, 0)
	if err != nil {
		return err
	}
	for i, text := range texts {
		if len(text) > fieldSize {
			return fmt.Errorf("text of %d bytes: a field holds at most %d", len(text), fieldSize)
		}
		n := copy(memory.Bytes(), text)
		field := board.Sub(uint64(i)*fieldSize, fieldSize)
		if err := conn.WriteImm(ctx, field, uint32(i), memory.Sub(0, n)); err != nil {
			return err
		}
	}
	return nil
}
