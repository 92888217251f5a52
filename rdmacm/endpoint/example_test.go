// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// messages is room for one message each way.
var messages = ibverbs.QPConfig{SendQueue: 1, RecvQueue: 1, SignalAll: true}

// server sends back the message that it receives.
func server(ctx context.Context, listens chan<- struct{}) error {
	hints := &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceTCP}
	infos, err := rdmacm.GetAddrInfo(ctx, "192.0.2.1", "7472", hints)
	if err != nil {
		return err
	}
	ln, err := endpoint.Create(ctx, infos[0], nil, &messages)
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

// client sends a message and prints what comes back.
func client(ctx context.Context) error {
	infos, err := rdmacm.GetAddrInfo(ctx, "192.0.2.1", "7472", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP})
	if err != nil {
		return err
	}
	ep, err := endpoint.Create(ctx, infos[0], nil, &messages)
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
func Example() {
	ctx := context.Background()
	listens, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- server(ctx, listens) }()
	<-listens
	if err := client(ctx); err != nil {
		log.Fatal(err)
	}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
}

// An endpoint's events can be had on a channel later, among those of others.
func ExampleEndpoint_Migrate() {
	ctx := context.Background()
	ep, err := endpoint.New(rdmacm.PortSpaceTCP)
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
