// Package flow steers packets to queue pairs by their headers. A program can
// then receive packets of any protocol without the kernel's network stack.
//
// A [Rule] sends the packets that its specs match to a queue pair of type
// [ibverbs.QPTypeRawPacket] or [ibverbs.QPTypeUD]. It can also mark, drop,
// count or decrypt them. [Create] creates a rule. [CreateRSSQP] creates a queue
// pair that spreads packets over several work queues, for as many goroutines to
// receive.
//
// Package ibverbs describes the lifetimes of objects: close each before those
// that it was created with. [ibverbs.OpenObjects] lists them. Functions and
// methods may be called concurrently. Numbers are in host byte order, in specs
// too; a [MAC] holds bytes as in a packet.
//
// Few devices support any of this. On others, calls fail with
// errors.ErrUnsupported. [ibverbs.Device.QueryDevice] reports whether and how a
// device spreads packets.
package flow
