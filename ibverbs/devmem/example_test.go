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
	fmt.Println("tell the peers the key and the address", mr.Remote().Addr)

	counter := binary.NativeEndian.AppendUint64(nil, 100)
	if _, err := dm.WriteAt(counter, 0); err != nil {
		log.Fatal(err)
	}
	clear(counter)
	if _, err := dm.ReadAt(counter, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the counter is", binary.NativeEndian.Uint64(counter))
	// Output:
	// tell the peers the key and the address 0
	// the counter is 100
}

// Let the device write received data to the cache of a processor.
func ExampleDMAHandle_Register() {
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
	handle, err := devmem.AllocDMAHandle(device, devmem.DMAHandleConfig{ProcessingHint: new(2)})
	if err != nil { // errors.ErrUnsupported on most devices
		log.Fatal(err)
	}
	defer handle.Close()
	memory := make([]byte, 1<<20)
	mr, err := handle.Register(pd, memory, ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	fmt.Println("registered", mr.All().Len(), "bytes")
	// Output: registered 1048576 bytes
}
