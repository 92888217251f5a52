// Package flow steers packets to queue pairs by what their headers say. So a
// program receives packets of any protocol without the kernel's network stack.
//
// A [Rule] brings the packets that its specs match to a queue pair of type
// [ibverbs.QPTypeRawPacket] or [ibverbs.QPTypeUD]; it can mark, drop, count or
// decrypt them on the way. [Create] makes one. [CreateRSSQP] makes a queue pair
// that spreads what rules bring over several work queues, so that as many
// goroutines can receive it.
//
// Objects have the lifetimes that package ibverbs describes: each must be closed
// before what it was made with, and [ibverbs.OpenObjects] lists them. Functions
// and methods may be called concurrently. Numbers have the host's byte order, in
// specs too; a [MAC] is bytes as a packet has them.
//
// Few devices can do any of this: calls fail with errors.ErrUnsupported where
// one cannot. [ibverbs.Device.QueryDevice] says how far a device spreads
// packets.
package flow
