// SPDX-License-Identifier: Apache-2.0

package devmem_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
)

// Keep a counter that peers add to in the device's memory.
func ExampleAlloc() {
	var device *ibverbs.Device // opened before
	var pd *ibverbs.PD

	dm, err := devmem.Alloc(device, 8, 8)
	if errors.Is(err, errors.ErrUnsupported) {
		log.Fatal("this device has no memory: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer dm.Close()
	mr, err := dm.Register(pd, 0, dm.Len(), ibverbs.AccessLocalWrite|ibverbs.AccessRemoteAtomic)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	fmt.Printf("tell the peers: %+v\n", mr.Remote())

	counter := make([]byte, 8)
	if _, err := dm.ReadAt(counter, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Println(binary.NativeEndian.Uint64(counter))
}

// Let the device write received data to the cache of the processor that uses
// it.
func ExampleDMAHandle_Register() {
	var device *ibverbs.Device // opened before
	var pd *ibverbs.PD

	handle, err := devmem.AllocDMAHandle(device, devmem.DMAHandleConfig{CPU: new(3)})
	if err != nil {
		log.Fatal(err)
	}
	defer handle.Close()
	memory := make([]byte, 1<<20)
	mr, err := handle.Register(pd, memory, ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
}
