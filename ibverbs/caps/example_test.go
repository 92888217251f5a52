// SPDX-License-Identifier: Apache-2.0

package caps_test

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/caps"
)

// See whether a device can do something.
func ExampleFlags() {
	capabilities := caps.XRC | caps.MemWindow // as DeviceAttr.Capabilities has them
	fmt.Println(capabilities)
	fmt.Println("steers flows:", capabilities&caps.FlowSteering != 0)
	// Output:
	// IBV_DEVICE_MEM_WINDOW|IBV_DEVICE_XRC
	// steers flows: false
}

// See for which types of queue pairs a device can do something.
func ExampleQPTypes_Has() {
	tso := caps.TSO{MaxPayload: 1 << 18, QPTypes: 1 << libibverbs.IBV_QPT_RAW_PACKET} // as in DeviceAttr.TSO
	fmt.Println(tso.QPTypes, tso.QPTypes.Has(libibverbs.IBV_QPT_UD))
	// Output:
	// IBV_QPT_RAW_PACKET false
}
