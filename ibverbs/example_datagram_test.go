package ibverbs_test

import (
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
)

// Send a datagram to a peer whose endpoint came another way, for example
// through a TCP connection.
func ExampleQP_Activate() {
	var (
		pd   *ibverbs.PD
		qp   *ibverbs.QP // of type QPTypeUD
		cq   *ibverbs.CQ // of its sends
		mr   *ibverbs.MR
		peer ibverbs.QPEndpoint // what QP.Endpoint gave to the peer
	)
	local, err := qp.Endpoint(ibverbs.EndpointOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := qp.Activate(local, 0); err != nil {
		log.Fatal(err)
	}
	ah, err := pd.CreateAH(ibverbs.AHAttr{
		Port: local.Port, SGIDIndex: local.GIDIndex, DLID: peer.LID, DGID: peer.GID, HopLimit: 64,
	})
	if err != nil {
		log.Fatal(err) // after up to three seconds, if the network does not know the peer
	}
	defer ah.Close() // when the datagram has been sent
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	n := copy(mr.Bytes(), "hello")
	to := ibverbs.Destination{AH: ah, QPNum: peer.QPN, QKey: peer.QKey}
	if err := batch.SendTo(1, to, ibverbs.SendSignaled, mr.Sub(0, n)); err != nil {
		log.Fatal(err)
	}
	if _, err := qp.PostSend(batch); err != nil {
		log.Fatal(err)
	}
	completions := make([]ibverbs.WC, 1)
	for n := 0; n == 0; {
		if n, err = cq.Poll(completions); err != nil {
			log.Fatal(err)
		}
	}
	if err := completions[0].Err(); err != nil {
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
		fmt.Printf("%q from QP %d\n", received[ibverbs.GRHLen:], wc.SrcQP())
	}
}
