// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
)

// List the GIDs of all ports, as show_gids does, and the one to connect with.
func ExampleDevice_QueryGIDTable() {
	device, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	entries, err := device.QueryGIDTable()
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		fmt.Println(e.Port, e.Index, e.GID, e.GID.Addr(), e.Type, e.NetDev)
	}
	best, err := device.BestGID(1, ibverbs.GIDConfig{Types: []ibverbs.GIDType{ibverbs.GIDTypeRoCEv2}})
	if err != nil {
		log.Fatal(err) // ErrNoGID lists what there is
	}
	fmt.Println("best:", best)
}

// Ask a device what it can do before relying on it.
func ExampleDevice_QueryDevice() {
	var device *ibverbs.Device // opened before

	attr, err := device.QueryDevice()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attr.FirmwareVersion, attr.MaxQP, "queue pairs of", attr.MaxQPWR, "requests")
	if attr.RSS.QPTypes.Has(ibverbs.QPTypeRawPacket) {
		fmt.Println("spreads what it receives over up to", attr.RSS.MaxIndirectionTableSize, "queues")
	}
	if attr.CoreClock == 0 {
		fmt.Println("its completions have no timestamps")
	}
}
