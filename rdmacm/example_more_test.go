package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// What the server says when it refuses comes with the error.
func ExampleDial_rejected() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := rdmacm.Dial(ctx, "192.0.2.1:7471", &rdmacm.Config{PrivateData: []byte("version 2")})
	if rejected, ok := errors.AsType[*rdmacm.RejectedError](err); ok {
		fmt.Printf("%v, data %q\n", rejected.Reason, rejected.PrivateData)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		fmt.Println("nobody there, or nobody who wants us")
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Println("no answer")
	case err != nil:
		log.Fatal(err)
	default:
		defer conn.Close()
	}
}

// A server offers memory in the private data with which it accepts. The client
// reads it without the server's help.
func ExampleConn_Read() {
	ctx := context.Background()
	conn, err := rdmacm.Dial(ctx, "192.0.2.1:7471", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var remote ibverbs.RemoteBuffer
	if err := remote.UnmarshalBinary(conn.PeerData()); err != nil {
		log.Fatal(err)
	}
	memory, err := conn.Alloc(int(remote.Len), ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	if err := conn.Read(ctx, memory.All(), remote); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", memory.Bytes())
}

// A server that serves every client in a goroutine of its own.
func ExampleListener() {
	ctx := context.Background()
	ln, err := rdmacm.Listen(ctx, ":7471", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			if !bytes.HasPrefix(req.PrivateData(), []byte("version 2")) {
				_ = req.Reject([]byte("version 2 only"))
				return
			}
			conn, err := req.Accept(ctx, nil)
			if err != nil {
				log.Print(err)
				return
			}
			defer conn.Close()
			<-conn.Done()
		}()
	}
}

// Every step in the program's hands: the beginning of a client.
func ExampleEventChannel() {
	ctx := context.Background()
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Close()
	id, err := ch.NewID(rdmacm.PortSpaceTCP)
	if err != nil {
		log.Fatal(err)
	}
	defer id.Close()
	if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:7471"), time.Second); err != nil {
		log.Fatal(err)
	}
	for {
		ev, err := ch.Next(ctx) // a copy, acknowledged
		if err != nil {
			log.Fatal(err)
		}
		if err := ev.Err(); err != nil {
			log.Fatal(err)
		}
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			err = ev.ID.ResolveRoute(time.Second)
		case rdmacm.EventRouteResolved:
			fmt.Println("from", ev.ID.LocalAddr(), "to", ev.ID.RemoteAddr())
			return // next: id.Context, CreateQP, Connect, EventEstablished
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
