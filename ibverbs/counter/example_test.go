// SPDX-License-Identifier: Apache-2.0

package counter_test

import (
	"fmt"
	"log"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
)

// Wait until a peer has written 100 messages into local memory.
func Example() {
	var device *ibverbs.Device // opened before
	var qp *ibverbs.QP         // not connected yet

	c, err := counter.Create(device, counter.Requests)
	if err != nil { // errors.ErrUnsupported on most devices
		log.Fatal(err)
	}
	defer c.Close() // after the queue pair
	if err := c.Attach(qp, counter.RemoteWrites); err != nil {
		log.Fatal(err)
	}
	// Connect the queue pair.
	for {
		n, err := c.Read()
		if err != nil {
			log.Fatal(err)
		}
		if n >= 100 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

// See which operations a device can count.
func ExampleQueryCaps() {
	var device *ibverbs.Device // opened before

	caps, err := counter.QueryCaps(device)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("receives:", caps.Ops&counter.Recvs != 0)
}
