package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// answerOne answers the first datagram of the next peer.
func answerOne(ctx context.Context, ln *rdmacm.DatagramListener) error {
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	var memory *ibverbs.MR
	var question *rdmacm.Receive
	conn, err := req.Accept(ctx, &rdmacm.DatagramConfig{Setup: func(c *rdmacm.DatagramConn) (err error) {
		if memory, err = c.Alloc(4096, ibverbs.AccessLocalWrite); err == nil {
			question, err = c.PostRecv(memory.Sub(0, c.MTU())) // before the peer can send
		}
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	n, err := question.Wait(ctx)
	if err != nil {
		return err
	}
	from, err := question.Sender()
	if err != nil {
		return err
	}
	n = copy(memory.Bytes(), fmt.Appendf(nil, "%s yourself", memory.Bytes()[:n]))
	return conn.SendTo(ctx, from, memory.Sub(0, n))
}

// A datagram goes to a server, and its answer comes back.
func ExampleDialDatagram() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // datagrams may be lost
	defer cancel()
	ln, err := rdmacm.ListenDatagram(ctx, "192.0.2.1:7473", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		if err := answerOne(ctx, ln); err != nil {
			log.Fatal(err)
		}
	}()

	conn, err := rdmacm.DialDatagram(ctx, "192.0.2.1:7473", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	memory, err := conn.Alloc(8192, ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := conn.PostRecv(memory.Sub(0, conn.MTU()))
	if err != nil {
		log.Fatal(err)
	}
	n := copy(memory.Bytes()[4096:], "hello")
	if err := conn.Send(ctx, memory.Sub(4096, n)); err != nil {
		log.Fatal(err)
	}
	if n, err = answer.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", memory.Bytes()[:n])
}

// One queue pair serves every peer that asks for it.
func ExampleDatagramRequest_AcceptOn() {
	ctx := context.Background()
	ln, err := rdmacm.ListenDatagram(ctx, ":7473", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	first, err := ln.Accept(ctx)
	if err != nil {
		log.Fatal(err)
	}
	service, err := first.Accept(ctx, &rdmacm.DatagramConfig{RecvQueue: 1024})
	if err != nil {
		log.Fatal(err)
	}
	defer service.Close()
	// Elsewhere, receives are posted on it, and their senders answered.
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if err := req.AcceptOn(service, nil); err != nil {
			log.Print(err)
		}
	}
}
