// Package rdmacm connects programs over RDMA, as librdmacm does; see
// rdma_cm(7).
//
// # The obvious way
//
// [Dial] and [Listen] make a [Conn], on which messages are sent and received
// and a peer's memory is read and written, each with a context. What the two
// programs tell each other at the start goes into the private data. A [Receiver]
// takes one message after the other.
//
// [DialDatagram] and [ListenDatagram] do the same for datagrams, and make a
// [DatagramConn]; with [JoinGroup] that sends to a multicast group.
//
// A Conn ends with Close at either end, which tells the other. A peer that has
// vanished is noticed by transfers, and by ends that are idle, after
// [Config.KeepAlive]. A program that ends right after it has closed a connection
// calls [Conn.Shutdown], which waits until the peer has heard of that.
//
// docs/connections.md in the repository says which end's settings of a Config
// rule what, and how long it takes to notice that a peer has vanished.
//
// # Full control
//
// An [EventChannel] delivers the events of its [ID]s, one at a time and in the
// caller's hands: resolve, connect, accept, and so on, as the C functions of
// the same names do. Calls that would make C follow a null pointer, because an
// earlier step is missing, are refused with an error that names the step.
//
// A [HandledID] has a function that handles its events, as ids have in the
// kernel.
//
// # One call after the other
//
// An [Endpoint] is an id whose calls wait for what they start, as those of
// rdma_create_ep(3) do: the shortest way for a program that does one thing at a
// time. It becomes an ID on an event channel, and back, with Migrate.
//
// # Waiting
//
// No wait holds a thread: goroutines are parked on Go's netpoller, and their
// contexts end them.
//
// A Send, Write, Read or atomic operation waits for a place in the send queue
// (Config.SendQueue), and then until it is done. A context that ends before the
// request is posted stops it. One that ends later ends the wait, not the
// transfer: the error is a [*PendingError], which can be waited for again.
//
// # Memory
//
// What a transfer reads or writes is the device's until the transfer is done.
// Memory from Conn.Alloc outlives the connection for who still reads it. Whoever
// knows a region's remote key can reach it from every connection of its protection
// domain; a connection has one of its own, unless Config.PD says otherwise.
// docs/memory.md has the whole of it.
//
// # Errors
//
// A C call that failed returns an [*ibverbs.Error] with the errno. A call that
// could not succeed is refused before C is called, with an
// [*ibverbs.ArgumentError] that names the field of the config, or what has to be
// done first. A peer's refusal is a [*RejectedError] with reason and private
// data, any other failure that an event reports an [*EventError], and a transfer
// that failed an [*ibverbs.WCError]. A name that cannot be looked up is an
// [*AddrInfoError]. Without the C library every call fails with
// errors.ErrUnsupported and says what to install.
package rdmacm
