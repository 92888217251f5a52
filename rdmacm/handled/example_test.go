// SPDX-License-Identifier: Apache-2.0

package handled_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// A server whose connections are handled as they are in the kernel: what is
// refused, fails or ends is an error of the handler, which closes its ID.
func Example() {
	devices, err := rdmacm.Devices()
	if err != nil {
		log.Fatal(err)
	}
	pd, err := devices[0].AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	cq, err := devices[0].CreateCQ(ibverbs.CQConfig{CompQueue: 1024})
	if err != nil {
		log.Fatal(err)
	}
	handle := func(id *handled.ID, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventConnectRequest: // id is a new one
			config := ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 8, RecvQueue: 8}
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
	ln, err := handled.New(rdmacm.PortSpaceTCP, handle)
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
