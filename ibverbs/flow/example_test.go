// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"crypto/rand"
	"fmt"
	"log"
	"net/netip"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
)

// Bring packets for a TCP port to a queue pair, and count them.
func ExampleCreate() {
	var device *ibverbs.Device // opened before
	var qp *ibverbs.QP         // of type QPTypeRawPacket

	counters, err := flow.CreateCounters(device)
	if err != nil {
		log.Fatal(err)
	}
	defer counters.Close()
	if err := counters.Attach(0, flow.CounterPackets, nil); err != nil {
		log.Fatal(err)
	}
	rule, err := flow.Create(qp, flow.Config{Specs: []flow.Spec{
		flow.Ethernet{EtherType: flow.Exact[uint16](0x0800)},
		flow.IPv4{Dst: netip.MustParsePrefix("192.0.2.0/24")},
		flow.TCP{DstPort: flow.Exact[uint16](443)},
		flow.Count{Counters: counters},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer rule.Close()

	packets := make([]uint64, 1)
	if err := counters.Read(packets, false); err != nil {
		log.Fatal(err)
	}
	fmt.Println(packets[0], "packets")
}

// Spread UDP over four work queues, so that four goroutines can receive it.
func ExampleCreateRSSQP() {
	var device *ibverbs.Device // opened before
	var pd *ibverbs.PD

	var wqs []*flow.WQ
	for range 4 {
		cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 256})
		if err != nil {
			log.Fatal(err)
		}
		defer cq.Close()
		wq, err := flow.CreateWQ(pd, flow.WQConfig{CQ: cq, RecvQueue: 256})
		if err != nil {
			log.Fatal(err)
		}
		defer wq.Close()
		if err := wq.SetState(flow.WQStateReady); err != nil {
			log.Fatal(err)
		}
		wqs = append(wqs, wq)
	}
	table, err := flow.CreateIndirectionTable(device, wqs)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	key := make([]byte, flow.RSSKeyLen)
	_, _ = rand.Read(key) // never fails
	qp, err := flow.CreateRSSQP(pd, flow.RSSConfig{
		Table: table, Key: key,
		Fields: flow.RSSSrcIPv4 | flow.RSSDstIPv4 | flow.RSSSrcPortUDP | flow.RSSDstPortUDP,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	fmt.Println("steer packets to QP", qp.Num())
}

// Match a field in all of its bits, or in some.
func ExampleExact() {
	sender := flow.Exact(flow.MAC{0x02, 0, 0, 0, 0x0a, 0xbc})
	fmt.Println(sender.Value, "in the bits", sender.Mask)
	high := flow.Match[uint16]{Value: 0xc000, Mask: 0xc000} // ports from 49152 on
	spec := flow.UDP{SrcPort: high, DstPort: flow.Exact[uint16](53)}
	fmt.Printf("%d in the bits %#x\n", spec.SrcPort.Value, spec.SrcPort.Mask)
	// Output:
	// 02:00:00:00:0a:bc in the bits ff:ff:ff:ff:ff:ff
	// 49152 in the bits 0xc000
}
