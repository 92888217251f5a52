// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"encoding/binary"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
)

// Take the next number of a counter in a peer's memory, however many others do
// so at the same time.
func ExampleSendBatch_FetchAdd() {
	var (
		qp      *ibverbs.QP          // connected, to a peer that allows AccessRemoteAtomic
		cq      *ibverbs.CQ          // of its sends
		mr      *ibverbs.MR          // with AccessLocalWrite
		counter ibverbs.RemoteBuffer // 8 bytes at an address that is a multiple of 8
	)
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	result := mr.Sub(0, 8)
	if err := batch.FetchAdd(1, counter, 1, ibverbs.SendSignaled, result); err != nil {
		log.Fatal(err)
	}
	if _, err := qp.PostSend(batch); err != nil {
		log.Fatal(err)
	}
	completions := make([]ibverbs.WC, 1)
	for n := 0; n == 0; {
		if n, err = cq.Spin(completions, ibverbs.MaxSpin); err != nil {
			log.Fatal(err)
		}
	}
	if err := completions[0].Err(); err != nil {
		log.Fatal(err) // WCRemoteAccess if the peer does not allow it
	}
	fmt.Println("number", binary.NativeEndian.Uint64(result.Bytes()))
}

// Take a lock in a peer's memory, if it is free.
func ExampleSendBatch_CompareSwap() {
	var batch *ibverbs.SendBatch  // for one request with one segment
	var mr *ibverbs.MR            // with AccessLocalWrite
	var lock ibverbs.RemoteBuffer // 8 bytes, 0 while it is free

	const me = 17
	result := mr.Sub(0, 8)
	if err := batch.CompareSwap(1, lock, 0, me, ibverbs.SendSignaled, result); err != nil {
		log.Fatal(err)
	}
	// Post the batch and wait for the completion. Then:
	if holder := binary.NativeEndian.Uint64(result.Bytes()); holder != 0 {
		fmt.Println(holder, "has the lock")
	}
}
