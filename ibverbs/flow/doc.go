// SPDX-License-Identifier: Apache-2.0

// Package flow steers packets to queue pairs by their headers. A program can
// then receive packets of any protocol without the kernel's network stack.
//
// A [Rule] sends the packets that its specs match to a queue pair of type
// [ibverbs.QPTypeRawPacket] or [ibverbs.QPTypeUD]. It can also mark, drop,
// count or decrypt them. [Create] creates a rule. [CreateRSSQP] creates a queue
// pair that spreads packets over several work queues, each of which a goroutine
// can serve; [CreateWQ] creates a work queue. A rule for UDP packets to one
// port:
//
//	rule, err := flow.Create(qp, flow.Config{Specs: []flow.Spec{
//		flow.Ethernet{EtherType: flow.Exact[uint16](0x0800)},
//		flow.IPv4{Dst: netip.MustParsePrefix("192.0.2.1/32")},
//		flow.UDP{DstPort: flow.Exact[uint16](319)},
//	}})
//
// Package ibverbs describes the lifetimes of objects. Close an object before
// the objects that it was created with; [ibverbs.OpenObjects] lists those that
// are open. Functions and methods may be called concurrently. Numbers are in
// host byte order, in specs too; a [MAC] holds bytes as in a packet.
//
// Few devices support any of this. On others, calls fail with an error matching
// errors.ErrUnsupported. [ibverbs.DeviceAttr.RSS] says how a device can spread
// packets.
package flow
