// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// Connect a reliable queue pair with a peer whose number, first packet number
// and GID came another way, for example through a TCP connection.
func ExampleQP_ToRTS() {
	var (
		qp       *ibverbs.QP // from PD.CreateQP
		port     ibverbs.PortAttr
		peer     uint32
		peerPSN  uint32
		peerGID  ibverbs.GID
		ownPSN   uint32
		gidIndex int
	)
	err := qp.ToInit(ibverbs.InitAttr{Port: 1, Access: ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite})
	if err != nil {
		log.Fatal(err)
	}
	// Receives can be posted from here on.
	err = qp.ToRTR(ibverbs.RTRAttr{
		Path:    ibverbs.AHAttr{Port: 1, DGID: peerGID, SGIDIndex: gidIndex, HopLimit: 64},
		PathMTU: port.ActiveMTU, DestQPNum: peer, RecvPSN: peerPSN,
		MaxDestReadAtomic: 16, MinRNRTimer: time.Millisecond,
	})
	var wrong *ibverbs.TransitionError
	if errors.As(err, &wrong) { // such as "RC init -> rtr: missing path_mtu"
		log.Fatal(wrong)
	}
	if err != nil { // the device, or the network, has something against it
		log.Fatal(err)
	}
	err = qp.ToRTS(ibverbs.RTSAttr{
		SendPSN: ownPSN, Timeout: 100 * time.Millisecond, RetryCount: 7, RNRRetryCount: ibverbs.RNRRetryForever, MaxReadAtomic: 16,
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Change an attribute of a queue pair that is in use.
func ExampleQP_Modify() {
	var qp *ibverbs.QP // ready to send
	err := qp.Modify(ibverbs.QPAttr{MinRNRTimer: 2 * time.Millisecond}, ibverbs.QPAttrMinRNRTimer)
	if err != nil {
		log.Fatal(err)
	}
	attr, err := qp.Query()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attr.State, attr.MinRNRTimer) // 2.56 ms: the next longer one that there is
}

// Let a thousand queue pairs share receives.
func ExamplePD_CreateSRQ() {
	var (
		pd *ibverbs.PD
		cq *ibverbs.CQ
		mr *ibverbs.MR
	)
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 4096})
	if err != nil {
		log.Fatal(err)
	}
	defer srq.Close() // after the queue pairs
	for range 1000 {
		qp, err := pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 16, SRQ: srq})
		if err != nil {
			log.Fatal(err)
		}
		defer qp.Close()
	}
	batch, err := ibverbs.NewRecvBatch(64, 1)
	if err != nil {
		log.Fatal(err)
	}
	for i := range 64 {
		if err := batch.Recv(uint64(i), mr.Sub(i*4096, 4096)); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := srq.PostRecv(batch); err != nil {
		log.Fatal(err)
	}
}

// Find the way back to the sender of a datagram.
func ExamplePD_CreateAHFromWC() {
	var (
		pd *ibverbs.PD
		mr *ibverbs.MR // where the datagram was received
		wc *ibverbs.WC
	)
	ah, err := pd.CreateAHFromWC(wc, mr.Bytes(), 1)
	if err != nil {
		log.Fatal(err)
	}
	defer ah.Close()
	fmt.Printf("%q from QP %d\n", mr.Bytes()[ibverbs.GRHLen:wc.ByteLen()], wc.SrcQPNum())
}
