// SPDX-License-Identifier: Apache-2.0

// Package link describes the links of ports: whether a link is up, how wide and
// how fast it is, and whether it is InfiniBand or Ethernet.
//
// QueryPort and QueryInfo of package ibverbs return its types. A [State] says
// whether a port can carry data, and a [PhysState] what its cable does. The
// rate of a port is that of one lane, its [LaneSpeed], times the lanes of its
// [Width]:
//
//	port, err := device.QueryPort(1)
//	if err != nil {
//		return err
//	}
//	if port.State == link.Active && port.LinkLayer == link.InfiniBand {
//		fmt.Println(port.ActiveWidth, port.ActiveSpeed) // such as 4X HDR
//	}
//
// In JSON, the values of all types are strings: those of their String methods.
package link
