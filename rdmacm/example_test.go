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

// messages is room for one message each way.
var messages = ibverbs.QPConfig{MaxSendWR: 1, MaxRecvWR: 1, SignalAll: true}

// endpointServer sends back the message that it receives.
func endpointServer(ctx context.Context, listens chan<- struct{}) error {
	hints := &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceTCP}
	infos, err := rdmacm.GetAddrInfo(ctx, "192.0.2.1", "7472", hints)
	if err != nil {
		return err
	}
	ln, err := rdmacm.CreateEndpoint(ctx, infos[0], nil, &messages)
	if err != nil {
		return err
	}
	defer ln.Close()
	if err := ln.Listen(0); err != nil {
		return err
	}
	close(listens)
	ep, err := ln.GetRequest(ctx)
	if err != nil {
		return err
	}
	defer ep.Close()
	memory, err := ep.RegMsgs(make([]byte, 16))
	if err != nil {
		return err
	}
	if err := ep.PostRecv(0, memory.All()); err != nil { // before the client can send
		return err
	}
	if err := ep.Accept(ctx, rdmacm.ConnParam{}); err != nil {
		return err
	}
	received, err := ep.RecvComp(ctx)
	if err != nil {
		return err
	}
	if err := ep.PostSend(0, 0, memory.Sub(0, received.ByteLen())); err != nil {
		return err
	}
	if _, err := ep.SendComp(ctx); err != nil {
		return err
	}
	_, err = ep.Next(ctx) // EventDisconnected, from the client
	return err
}

// endpointClient sends a message and prints what comes back.
func endpointClient(ctx context.Context) error {
	infos, err := rdmacm.GetAddrInfo(ctx, "192.0.2.1", "7472", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP})
	if err != nil {
		return err
	}
	ep, err := rdmacm.CreateEndpoint(ctx, infos[0], nil, &messages)
	if err != nil {
		return err
	}
	defer ep.Close()
	in, err := ep.RegMsgs(make([]byte, 16))
	if err != nil {
		return err
	}
	out, err := ep.RegMsgs([]byte("hello"))
	if err != nil {
		return err
	}
	if err := ep.PostRecv(0, in.All()); err != nil {
		return err
	}
	if _, err := ep.Connect(ctx, rdmacm.ConnParam{}); err != nil {
		return err
	}
	if err := ep.PostSend(0, 0, out.All()); err != nil {
		return err
	}
	if _, err := ep.SendComp(ctx); err != nil {
		return err
	}
	received, err := ep.RecvComp(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", in.Bytes()[:received.ByteLen()])
	return ep.Disconnect(ctx)
}

// The two programs of rdma-core's examples, rdma_server and rdma_client: every
// call waits for what it starts. Errors come from the step that failed.
func ExampleEndpoint() {
	ctx := context.Background()
	listens, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- endpointServer(ctx, listens) }()
	<-listens
	if err := endpointClient(ctx); err != nil {
		log.Fatal(err)
	}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
}

// An endpoint's events can be had on a channel later, among those of others.
func ExampleEndpoint_Migrate() {
	ctx := context.Background()
	ep, err := rdmacm.NewEndpoint(rdmacm.PortSpaceTCP)
	if err != nil {
		log.Fatal(err)
	}
	defer ep.Close() // what it has made
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Close()
	id, err := ep.Migrate(ch)
	if err != nil {
		log.Fatal(err)
	}
	defer id.Close()
	for ev, err := range ch.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ev.Type)
	}
}

// A member of a multicast group receives what another end sends to it.
func ExampleJoinGroup() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
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

	// Usually another program on another host.
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

// A server whose connections are handled as they are in the kernel: what is
// refused, fails or ends is an error of the handler, which closes its id.
func ExampleHandledID() {
	devices, err := rdmacm.Devices()
	if err != nil {
		log.Fatal(err)
	}
	pd, err := devices[0].AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	cq, err := devices[0].CreateCQ(ibverbs.CQConfig{Entries: 1024})
	if err != nil {
		log.Fatal(err)
	}
	handle := func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventConnectRequest: // id is a new one
			config := ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8}
			if _, err := id.CreateQP(pd, config); err != nil {
				return err // the peer is rejected
			}
			return ev.ID.Accept(rdmacm.ConnParam{})
		case rdmacm.EventEstablished:
			fmt.Println("connected to", ev.ID.RemoteAddr())
		case rdmacm.EventDisconnected:
			_ = ev.ID.Disconnect() // tells the peer that this end knows
		}
		return ev.Err() // nil for an event that reports progress
	}
	ln, err := rdmacm.NewHandledID(rdmacm.PortSpaceTCP, handle)
	if err != nil {
		log.Fatal(err)
	}
	if err := ln.ID().BindAddr(netip.MustParseAddrPort("192.0.2.1:7471")); err != nil {
		log.Fatal(err)
	}
	if err := ln.Listen(128); err != nil {
		log.Fatal(err)
	}
	<-ln.Done()
	log.Fatal(ln.Err())
}
