// Package flow steers packets to queue pairs by their headers. A program can
// then receive packets of any protocol without the kernel's network stack.
//
// A [Rule] sends the packets that its specs match to a queue pair of type
// [ibverbs.QPTypeRawPacket] or [ibverbs.QPTypeUD]. It can also mark, drop,
// count or decrypt them. [Create] creates a rule. [CreateRSSQP] creates a queue
// pair that spreads packets over several work queues, each of which a goroutine
// can serve.
//
// Package ibverbs describes the lifetimes of objects. Close an object before
// the objects that it was created with; [ibverbs.OpenObjects] lists those that
// are open. Functions and methods may be called concurrently. Numbers are in
// host byte order, in specs too; a [MAC] holds bytes as in a packet.
//
// Few devices support any of this. On others, calls fail with
// errors.ErrUnsupported. [ibverbs.Device.QueryDevice] reports how a device can
// spread packets.
package flow
