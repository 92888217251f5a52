// SPDX-License-Identifier: Apache-2.0

package efa_test

import (
	"errors"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/efa"
)

// Send a message to a peer, whose GID, queue pair number and key came another
// way.
func Example() {
	var device *ibverbs.Device // opened before
	var pd *ibverbs.PD
	var cq *ibverbs.CQ
	var mr *ibverbs.MR
	var peer struct {
		GID         ibverbs.GID
		QPNum, QKey uint32
	}

	if _, err := efa.Query(device); errors.Is(err, errors.ErrUnsupported) {
		log.Fatal("not an Elastic Fabric Adapter")
	}
	qp, err := efa.CreateQP(pd, efa.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 16, RecvQueue: 16})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	if err := qp.Start(efa.Path{Port: 1, QKey: 0x11111111}); err != nil {
		log.Fatal(err)
	}
	ah, err := pd.CreateAH(ibverbs.AHAttr{Port: 1, DGID: peer.GID})
	if err != nil {
		log.Fatal(err)
	}
	defer ah.Close()
	err = qp.Post(efa.Request{
		Op: efa.Send, Flags: ibverbs.SendSignaled, Segments: []ibverbs.Segment{mr.All()},
		To: ibverbs.Destination{AH: ah, QPNum: peer.QPNum, QKey: peer.QKey},
	})
	if err != nil {
		log.Fatal(err)
	}
	// The completion comes to cq.
}
