// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
)

// Send a datagram to a peer whose endpoint came another way, for example
// through a TCP connection.
func ExampleQP_Activate() {
	var (
		ctx  context.Context
		pd   *ibverbs.PD
		qp   *ibverbs.QP    // of type QPTypeUD, made with MaxInline
		cq   *ibverbs.CQ    // of its sends, made with a CompChannel
		peer ibverbs.QPAddr // what QP.Addr gave to the peer
	)
	local, err := qp.Addr(ibverbs.QPAddrConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := qp.Activate(local, 0); err != nil {
		log.Fatal(err)
	}
	to, err := pd.CreateDestination(local, peer)
	if err != nil {
		log.Fatal(err) // after up to three seconds, if the network does not know the peer
	}
	defer to.AH.Close() // when the datagram has been sent
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	hello := ibverbs.InlineBytes([]byte("hello"))
	if err := batch.SendTo(1, to, ibverbs.SendSignaled|ibverbs.SendInline, hello); err != nil {
		log.Fatal(err)
	}
	if _, err := qp.PostSend(batch); err != nil {
		log.Fatal(err)
	}
	if _, err := cq.WaitOne(ctx); err != nil {
		log.Fatal(err)
	}
}

// Receive datagrams: each comes with a header in front.
func ExampleRecvBatch_Recv() {
	var qp *ibverbs.QP // of type QPTypeUD, which Activate has made ready
	var cq *ibverbs.CQ // of its receives
	var mr *ibverbs.MR

	const receives, size = 16, ibverbs.GRHLen + 1024
	batch, err := ibverbs.NewRecvBatch(receives, 1)
	if err != nil {
		log.Fatal(err)
	}
	for i := range receives {
		if err := batch.Recv(uint64(i), mr.Sub(i*size, size)); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := qp.PostRecv(batch); err != nil {
		log.Fatal(err)
	}
	completions := make([]ibverbs.WC, receives)
	n, err := cq.Poll(completions)
	if err != nil {
		log.Fatal(err)
	}
	for i := range completions[:n] {
		wc := &completions[i]
		if err := wc.Err(); err != nil {
			log.Fatal(err)
		}
		received := mr.Sub(int(wc.ID())*size, wc.ByteLen()).Bytes()
		fmt.Printf("%q from QP %d\n", received[ibverbs.GRHLen:], wc.SrcQPNum())
	}
}
