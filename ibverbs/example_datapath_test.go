// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// Make a batch once, and change and post it again and again.
func ExampleSendBatch_WR() {
	var qp *ibverbs.QP // connected; see package rdmacm
	var mr *ibverbs.MR
	var peer ibverbs.RemoteBuffer // as the peer sent it

	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	if err := batch.WriteImm(1, peer, 0, ibverbs.SendSignaled, mr.Sub(0, 64)); err != nil {
		log.Fatal(err)
	}
	write := func(number uint32, offset, n int) error {
		request := batch.WR(0)
		if err := request.SetImm(number); err != nil {
			return err
		}
		if err := request.SetSegments(mr.Sub(offset, n)); err != nil {
			return err
		}
		_, err := qp.PostSend(batch)
		return err
	}
	_ = write
}

// Post and wait for the completion, in one call of C that lasts 50 microseconds
// at most.
func ExampleQP_PostSendAndSpin() {
	var qp *ibverbs.QP
	var cq *ibverbs.CQ // of its sends
	var batch *ibverbs.SendBatch

	completions := make([]ibverbs.WC, 16)
	_, n, err := qp.PostSendAndSpin(batch, cq, completions, 50*time.Microsecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	for n == 0 { // not yet
		if n, err = cq.Spin(completions, ibverbs.MaxSpin); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(completions[0].Err())
}

// A request and the answer to it: the receive for the answer is posted before
// the request, and both completions, of the request and of the answer, come
// back from the same call, unless the peer takes longer.
func ExampleQP_Exchange() {
	var qp *ibverbs.QP
	var cq *ibverbs.CQ // of its sends and receives
	var request *ibverbs.SendBatch
	var answer *ibverbs.RecvBatch

	completions := make([]ibverbs.WC, 2)
	n, err := qp.Exchange(answer, request, cq, completions, 2, ibverbs.MaxSpin)
	for left := 2; ; n, err = cq.Spin(completions, ibverbs.MaxSpin) {
		if err != nil {
			fmt.Println(err)
			return
		}
		for i := range completions[:n] {
			if err := completions[i].Err(); err != nil {
				fmt.Println(err)
				return
			}
		}
		if left -= n; left == 0 {
			break
		}
	}
}

// A loop that has a thread of its own answers an event sooner than with Wait,
// and looks at its context between the calls.
func ExampleCQ_Sleep() {
	var ctx context.Context
	var cq *ibverbs.CQ // with a channel of its own

	completions := make([]ibverbs.WC, 16)
	for ctx.Err() == nil {
		n, err := cq.Sleep(completions, ibverbs.MaxSpin)
		if err != nil {
			fmt.Println(err)
			return
		}
		for i := range completions[:n] {
			fmt.Println(completions[i].ID(), completions[i].Err())
		}
	}
}

// Completions with the time at which the device made them.
func ExampleWC_Time() {
	var device *ibverbs.Device

	cq, err := device.CreateCQ(ibverbs.CQConfig{
		CompQueue: 256, Fields: ibverbs.WCStandard | ibverbs.WCWithWallclock,
	})
	if err != nil {
		fmt.Println(err) // errors.ErrUnsupported if the device has no such clock
		return
	}
	completions := make([]ibverbs.WC, 16)
	n, err := cq.Poll(completions)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range completions[:n] {
		fmt.Println(completions[i].ID(), completions[i].Time())
	}
}
