// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"fmt"
	"log"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
)

// Register memory that the program has, let peers read part of it, and send
// another part.
func ExamplePD_Register() {
	var pd *ibverbs.PD // of an open device

	memory := make([]byte, 1<<20) // which is pinned until the region is closed
	mr, err := pd.Register(memory, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	header := mr.Sub(0, copy(memory, "a message"))
	offer, err := mr.Sub(4096, 8192).Remote()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q for SendBatch.Send; tell the peer: %+v\n", header.Bytes(), offer)
}

// Use huge pages where the system has some.
func ExamplePD_AllocHuge() {
	var pd *ibverbs.PD // of an open device

	const size = 16 * ibverbs.HugePage2M
	mr, err := pd.AllocHuge(size, ibverbs.HugePage2M, ibverbs.AccessLocalWrite)
	if errors.Is(err, syscall.ENOMEM) {
		log.Print("going on with small pages: ", err) // says how to reserve huge ones
		mr, err = pd.Alloc(size, ibverbs.AccessLocalWrite)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	copy(mr.Bytes(), "hello")
}

// Open a piece of a region to peers, for a while.
func ExampleMW_Bind() {
	var pd *ibverbs.PD // of an open device
	var qp *ibverbs.QP // a connected queue pair of the domain
	var cq *ibverbs.CQ // its send queue's completions

	mr, err := pd.Alloc(1<<20, ibverbs.AccessLocalWrite|ibverbs.AccessWindowBind)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	mw, err := pd.AllocMW(ibverbs.MWType1)
	if err != nil {
		log.Fatal(err)
	}
	defer mw.Close() // before the region's Close

	err = mw.Bind(qp, 1, ibverbs.SendSignaled, ibverbs.Binding{
		Memory: mr.Sub(4096, 8192),
		Access: ibverbs.AccessRemoteRead,
	})
	if err != nil {
		log.Fatal(err)
	}
	wcs := make([]ibverbs.WC, 1)
	for n := 0; n == 0; {
		if n, err = cq.Poll(wcs); err != nil {
			log.Fatal(err)
		}
	}
	if err := wcs[0].Err(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("tell the peer: %+v\n", mw.Remote())
}

// Give a region that is there other rights, or make another one.
func ExampleMR_Rereg() {
	var mr *ibverbs.MR

	err := mr.Rereg(ibverbs.ReregConfig{Access: new(ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead)})
	var failure *ibverbs.ReregError
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		log.Print("the device cannot: ", err)
	case errors.As(err, &failure) && failure.Unusable():
		log.Fatal(err) // all that is left is mr.Close
	case err != nil:
		log.Print("the region is as it was: ", err)
	}
}
