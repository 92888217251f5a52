// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
)

// A look-up has found the device and the port for the service of a GID.
func ExampleID_ResolveIB() {
	ctx := context.Background()
	hints := &rdmacm.AddrInfo{
		Flags: rdmacm.AddrFamily | rdmacm.AddrNumericHost, Family: rdmacm.FamilyIB, PortSpace: rdmacm.PortSpaceIB,
	}
	infos, err := rdmacm.GetAddrInfo(ctx, "fe80::2:c903:1:4aef", "7471", hints)
	if err != nil {
		log.Fatal(err)
	}
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Close()
	id, err := ch.NewID(rdmacm.PortSpaceIB)
	if err != nil {
		log.Fatal(err)
	}
	defer id.Close()
	if err := id.ResolveIB(nil, infos[0].DstIB, time.Second); err != nil {
		log.Fatal(err)
	}
	ev, err := ch.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := ev.Err(); err != nil {
		log.Fatal(err)
	}
	device, err := id.Device()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(device.Name(), id.PortNum(), "from", id.LocalIBAddr())
}
