// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"fmt"
	"log"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
)

// Let a peer's single queue pair reach the receives of several processes here,
// which all run this.
func ExampleDevice_OpenXRCD() {
	var (
		device *ibverbs.Device
		pd     *ibverbs.PD
		cq     *ibverbs.CQ
	)
	file, err := os.OpenFile("/run/lock/example.xrcd", os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	domain, err := device.OpenXRCD(ibverbs.XRCDConfig{File: file, Create: true})
	if err != nil {
		log.Fatal(err)
	}
	defer domain.Close()
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, RecvQueue: 1024, XRCD: domain, CQ: cq})
	if err != nil {
		log.Fatal(err)
	}
	defer srq.Close()
	number, err := srq.Num()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("peers send to", number, "with SendWR.SetXRCSRQ")

	// One of the processes makes the receiving queue pair and connects it; the
	// others open it by its number, so that it outlives the first.
	qp, err := pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCRecv, XRCD: domain})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	fmt.Println("the others call XRCD.OpenQP with", qp.Num())
}
