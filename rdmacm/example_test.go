package rdmacm_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// receive takes one connection and prints the message that comes over it.
func receive(ctx context.Context, ln *rdmacm.Listener) error {
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	var memory *ibverbs.MR
	var message *rdmacm.Receive
	conn, err := req.Accept(ctx, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		if memory, err = c.Alloc(4096, ibverbs.AccessLocalWrite); err == nil {
			message, err = c.PostRecv(memory.All()) // before the client can send
		}
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	n, err := message.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", memory.Bytes()[:n])
	return conn.Wait(ctx) // until the client, whose message was the last, has closed
}

// greet connects and sends a message.
func greet(ctx context.Context, server string) error {
	conn, err := rdmacm.Dial(ctx, server, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	memory, err := conn.Alloc(4096, 0)
	if err != nil {
		return err
	}
	n := copy(memory.Bytes(), "hello over RDMA")
	if err := conn.Send(ctx, memory.Sub(0, n)); err != nil {
		return err
	}
	return conn.Shutdown(ctx) // the server hears of the end, although this program ends
}

// A server receives a message from a client. Usually they are two programs.
func Example() {
	ctx := context.Background()
	ln, err := rdmacm.Listen(ctx, "192.0.2.1:7471", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		if err := greet(ctx, "192.0.2.1:7471"); err != nil {
			log.Fatal(err)
		}
	}()
	if err := receive(ctx, ln); err != nil {
		log.Fatal(err)
	}
}
