// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/verbena-go/verbena/ibverbs"
)

// Let a peer's single queue pair reach the receives of several processes here,
// which all do this. In the example, one process opens the domain twice. The
// device in user space has domains within a process only.
func ExampleDevice_OpenXRCD() {
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
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1024})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Close()

	name := filepath.Join(os.TempDir(), "example.xrcd")
	file, err := os.OpenFile(name, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(name)
	defer file.Close()
	domain, err := device.OpenXRCD(ibverbs.XRCDConfig{File: file, Create: true})
	if err != nil { // errors.ErrUnsupported on many devices
		log.Fatal(err)
	}
	defer domain.Close()
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, RecvQueue: 1024, XRCD: domain, CQ: cq})
	if err != nil {
		log.Fatal(err)
	}
	defer srq.Close()
	number, err := srq.Num() // to which peers send, with SendWR.SetXRCSRQ
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the queue has a number:", number != 0)

	// One of the processes makes the receiving queue pair and connects it; the
	// others open it by its number, so that it outlives the first.
	qp, err := pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCRecv, XRCD: domain})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	same, err := device.OpenXRCD(ibverbs.XRCDConfig{File: file})
	if err != nil {
		log.Fatal(err)
	}
	defer same.Close()
	opened, err := same.OpenQP(qp.Num())
	if err != nil {
		log.Fatal(err)
	}
	defer opened.Close()
	fmt.Println("the queue pair is open twice:", opened.Num() == qp.Num())
	// Output:
	// the queue has a number: true
	// the queue pair is open twice: true
}
