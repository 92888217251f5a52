// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"fmt"

	"github.com/verbena-go/verbena/ibverbs/link"
)

// Say how fast a port is, from what Device.QueryPort returned about it.
func Example() {
	width, speed := link.Width4X, link.NDR
	lanes := link.Speed(width.Lanes())
	fmt.Println(width, speed, lanes*speed.Rate())
	fmt.Println(lanes*speed.SignalingRate(), "on the wire")
	// Output:
	// 4X NDR 400 Gb/s
	// 425 Gb/s on the wire
}
