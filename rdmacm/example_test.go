// SPDX-License-Identifier: Apache-2.0

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

// greet connects and sends a message.
func greet(ctx context.Context, server string) {
	conn, err := rdmacm.Dial(ctx, server, nil)
	check(err)
	memory, err := conn.Alloc(4096, 0) // memory that the card may read
	check(err)
	n := copy(memory.Bytes(), "hello over RDMA")
	check(conn.Send(ctx, memory.Sub(0, n)))
	check(conn.Shutdown(ctx)) // returns when the server knows of the end
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A server receives a message from a client. Usually the two are separate
// programs.
func Example() {
	ctx := context.Background()
	const address = "192.0.2.1:7471"
	ln, err := rdmacm.Listen(ctx, address, nil)
	check(err)
	go greet(ctx, address)
	req, err := ln.Accept(ctx)
	check(err)
	conn, err := req.Accept(ctx, &rdmacm.Config{MessageSize: 4096})
	check(err)
	message, err := conn.Receive(ctx)
	check(err)
	fmt.Printf("%s\n", message.Data)
	check(conn.Wait(ctx)) // until the client, whose message was the last, has closed
	check(conn.Close())
	check(ln.Close())
}

// A server that refuses can send data, which comes with the error.
func ExampleDial_rejected() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := rdmacm.Dial(ctx, "192.0.2.1:7471", &rdmacm.Config{PrivateData: []byte("version 2")})
	if rejected, ok := errors.AsType[*rdmacm.RejectedError](err); ok {
		fmt.Printf("%v, data %q\n", rejected.Reason, rejected.PrivateData)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		fmt.Println("no listener, or a listener that refuses")
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Println("no answer")
	case err != nil:
		log.Fatal(err)
	default:
		defer conn.Close()
	}
}

// A server offers memory in the private data of its acceptance. The client
// reads the memory without the server's help.
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

// A thousand records are written to the peer's memory, sixteen in a call. Up to
// four calls are under way at a time. A batch is filled again when its transfer
// is done.
func ExampleConn_Post() {
	ctx := context.Background()
	conn, err := rdmacm.Dial(ctx, "192.0.2.1:7471", &rdmacm.Config{SendQueue: 64})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var remote ibverbs.RemoteBuffer
	if err := remote.UnmarshalBinary(conn.PeerData()); err != nil {
		log.Fatal(err)
	}
	const records, size, each, atATime = 1000, 100, 16, 4
	memory, err := conn.Alloc(records*size, 0)
	if err != nil {
		log.Fatal(err)
	}
	var batches [atATime]*ibverbs.SendBatch
	var transfers [atATime]rdmacm.Transfer
	for i := range batches {
		if batches[i], err = ibverbs.NewSendBatch(each, 1); err != nil {
			log.Fatal(err)
		}
	}
	calls := 0
	for first := 0; first < records; first += each {
		i := calls % atATime
		if calls >= atATime {
			if err := transfers[i].Wait(ctx); err != nil {
				log.Fatal(err)
			}
		}
		batches[i].Reset()
		for k := first; k < min(first+each, records); k++ {
			if err := batches[i].Write(0, remote.Sub(uint64(k*size), size), 0, memory.Sub(k*size, size)); err != nil {
				log.Fatal(err)
			}
		}
		if err := conn.Post(ctx, &transfers[i], batches[i]); err != nil {
			log.Fatal(err)
		}
		calls++
	}
	// Transfers end in order: when the last one has ended, all have.
	if err := transfers[(calls-1)%atATime].Wait(ctx); err != nil {
		log.Fatal(err)
	}
}

// A server's connections share a pool. Each client sends one message.
func ExamplePool() {
	ctx := context.Background()
	ln, err := rdmacm.Listen(ctx, "192.0.2.1:7471", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	pool := &rdmacm.Pool{Sends: 17 * 1000} // for 1,000 connections with a SendQueue of 16

	serving, stop := context.WithCancel(ctx)
	served := make(chan error)
	go func() {
		served <- ln.Serve(serving, func(ctx context.Context, req *rdmacm.Request) {
			conn, err := req.Accept(ctx, &rdmacm.Config{Queues: pool, MessageSize: 4096})
			if err != nil {
				log.Print(err)
				return
			}
			defer conn.Close()
			message, err := conn.Receive(ctx)
			if err != nil {
				log.Print(err)
				return
			}
			fmt.Printf("%s\n", message.Data)
			_ = conn.Wait(ctx) // until the client, whose message was the last, has closed
		})
	}()
	// Usually these are other programs on other hosts.
	for range 2 {
		greet(ctx, "192.0.2.1:7471")
	}
	stop()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
}

// One goroutine polls for many connections.
func ExampleConn_Completed() {
	ctx := context.Background()
	devices, err := rdmacm.Devices()
	if err != nil || len(devices) == 0 {
		log.Fatal("no device: ", err)
	}
	channel, err := devices[0].CreateCompChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	cq, err := devices[0].CreateCQ(ibverbs.CQConfig{CompQueue: 1024, Channel: channel})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Close()

	conns := map[uint32]*rdmacm.Conn{}
	for _, address := range []string{"192.0.2.1:7471", "192.0.2.2:7471"} {
		conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: cq}})
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		conns[conn.QP().Num()] = conn
		go func() {
			if err := conn.Send(ctx); err != nil { // returns when its completion has been passed on
				log.Print(err)
			}
		}()
	}
	wcs := make([]ibverbs.WC, 16)
	for {
		n, err := cq.Wait(ctx, wcs)
		if err != nil {
			log.Fatal(err)
		}
		for i := range wcs[:n] {
			if conn := conns[wcs[i].QPNum()]; !conn.Completed(&wcs[i]) {
				fmt.Println("a request of this program's own:", wcs[i].ID())
			}
		}
	}
}

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

// The program takes every step itself: this is the beginning of a client.
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // datagrams may be lost
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
	// Another part of the program posts receives on it and answers the senders.
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

// A member of a multicast group receives what another end sends to it.
func ExampleJoinGroup() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	group := netip.MustParseAddr("239.1.2.3")

	member, err := rdmacm.JoinGroup(ctx, group, &rdmacm.GroupConfig{LocalAddr: "192.0.2.1"})
	if err != nil {
		log.Fatal(err)
	}
	defer member.Close()
	memory, err := member.Alloc(4096, ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	news, err := member.PostRecv(memory.Sub(0, member.MTU()))
	if err != nil {
		log.Fatal(err)
	}

	// Usually the sender is another program on another host.
	sender, err := rdmacm.JoinGroup(ctx, group, &rdmacm.GroupConfig{LocalAddr: "192.0.2.1", SendOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close()
	text, err := sender.Alloc(4096, 0)
	if err != nil {
		log.Fatal(err)
	}
	if err := sender.Send(ctx, text.Sub(0, copy(text.Bytes(), "to all members"))); err != nil {
		log.Fatal(err)
	}

	n, err := news.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	from, err := news.Sender() // for SendTo
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, from %v\n", memory.Bytes()[:n], from.Path.DGID.Addr())
}
