package ibverbs_test

import (
	"crypto/rand"
	"fmt"
	"log"
	"net/netip"

	"github.com/verbena-go/verbena/ibverbs"
)

// Bring packets for a TCP port to a queue pair, and count them.
func ExampleQP_CreateFlow() {
	var device *ibverbs.Device // opened before
	var qp *ibverbs.QP         // of type QPTypeRawPacket

	counters, err := device.CreateCounters()
	if err != nil {
		log.Fatal(err)
	}
	defer counters.Close()
	if err := counters.AttachFlow(0, ibverbs.CounterPackets, nil); err != nil {
		log.Fatal(err)
	}
	flow, err := qp.CreateFlow(ibverbs.FlowConfig{Specs: []ibverbs.FlowSpec{
		ibverbs.FlowEthernet{EtherType: ibverbs.Exact[uint16](0x0800)},
		ibverbs.FlowIPv4{Dst: netip.MustParsePrefix("192.0.2.0/24")},
		ibverbs.FlowTCP{DstPort: ibverbs.Exact[uint16](443)},
		ibverbs.FlowCount{Counters: counters},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer flow.Close()

	packets := make([]uint64, 1)
	if err := counters.Read(packets, false); err != nil {
		log.Fatal(err)
	}
	fmt.Println(packets[0], "packets")
}

// Spread UDP over four work queues, so that four goroutines can receive it.
func ExamplePD_CreateRSSQP() {
	var device *ibverbs.Device // opened before
	var pd *ibverbs.PD

	var wqs []*ibverbs.WQ
	for range 4 {
		cq, err := device.CreateCQ(ibverbs.CQConfig{Entries: 256})
		if err != nil {
			log.Fatal(err)
		}
		defer cq.Close()
		wq, err := pd.CreateWQ(ibverbs.WQConfig{CQ: cq, MaxWR: 256})
		if err != nil {
			log.Fatal(err)
		}
		defer wq.Close()
		if err := wq.SetState(ibverbs.WQStateReady); err != nil {
			log.Fatal(err)
		}
		wqs = append(wqs, wq)
	}
	table, err := device.CreateIndirectionTable(wqs)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	key := make([]byte, ibverbs.RSSKeyLen)
	_, _ = rand.Read(key) // never fails
	qp, err := pd.CreateRSSQP(ibverbs.RSSConfig{
		Table: table, Key: key,
		Fields: ibverbs.RSSSrcIPv4 | ibverbs.RSSDstIPv4 | ibverbs.RSSSrcPortUDP | ibverbs.RSSDstPortUDP,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	fmt.Println("steer packets to QP", qp.Num())
}
