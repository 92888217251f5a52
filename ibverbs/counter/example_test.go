// SPDX-License-Identifier: Apache-2.0

package counter_test

import (
	"fmt"
	"log"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
)

// Wait until a peer has written 100 messages into local memory. Here, the queue
// pair is its own peer.
func Example() {
	device, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	pd, err := device.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	mr, err := pd.Alloc(8192, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()

	c, err := counter.Create(device, counter.Requests)
	if err != nil { // errors.ErrUnsupported on most devices
		log.Fatal(err)
	}
	defer c.Close() // after the queue pair
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 100})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Close()
	qp, err := pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 100, RecvQueue: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	if err := c.Attach(qp, counter.RemoteWrites); err != nil {
		log.Fatal(err)
	}
	self, err := qp.Addr(ibverbs.QPAddrConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := qp.ConnectTo(self, self, ibverbs.ConnectConfig{}); err != nil {
		log.Fatal(err)
	}

	batch, err := ibverbs.NewSendBatch(100, 1)
	if err != nil {
		log.Fatal(err)
	}
	for i := range 100 {
		if err := batch.Write(uint64(i), mr.Remote().Sub(4096, 64), ibverbs.SendSignaled, mr.Sub(0, 64)); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := qp.PostSend(batch); err != nil {
		log.Fatal(err)
	}
	for {
		n, err := c.Read()
		if err != nil {
			log.Fatal(err)
		}
		if n >= 100 {
			fmt.Println("the peer has written", n, "messages")
			break
		}
		time.Sleep(time.Millisecond)
	}
	// Output: the peer has written 100 messages
}

// See which operations a device can count.
func ExampleQueryCaps() {
	device, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	caps, err := counter.QueryCaps(device)
	if err != nil { // errors.ErrUnsupported on most devices
		log.Fatal(err)
	}
	fmt.Println("receives:", caps.Ops&counter.Recvs != 0)
	// Output: receives: true
}
