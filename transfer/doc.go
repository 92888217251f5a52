// SPDX-License-Identifier: Apache-2.0

// Package transfer moves bytes between the memory of processes: batches of RDMA
// reads and writes of any length, over any number of connections and devices.
// It is for programs that move caches, weights, checkpoints or blocks of
// storage. It stores nothing, and calls nothing at the peer.
//
// An [Engine] has the devices of this process and the memory that is registered
// with them. A [Region] is such memory; peers look it up by its name:
//
//	engine, err := transfer.New(transfer.Config{})
//	region, err := engine.Alloc(1<<30, transfer.RegionConfig{Name: "weights", Access: transfer.ReadAccess})
//	ln, err := engine.Listen(ctx, ":7471", transfer.ListenConfig{})
//
// The other process dials, and has a [Peer]. Both ends may read and write:
//
//	peer, err := engine.Dial(ctx, "192.0.2.1:7471", transfer.DialConfig{})
//	weights, err := peer.Region(ctx, "weights")
//	batch := peer.NewBatch(2)
//	err = batch.Read(first, weights, 0)
//	err = batch.Read(second, weights, 1<<20)
//	err = batch.Submit(ctx)
//	err = batch.Wait(ctx)
//
// The memory of requests is any []byte. What is not registered yet is
// registered on the way, and stays so for later batches, up to Config.CacheSize
// bytes; see [Engine.Forget] for memory that is not of Go's heap.
//
// # Connections
//
// Dial makes a connection for control, and Config.Connections for each pair of
// devices. A device of one end is paired with one of the other. Requests are
// split into slices of at most Config.SliceSize bytes, and each connection
// takes the next slices when it has room, so faster connections carry more.
// Requests of up to 128 KiB go by the device that is nearest to this end's
// memory, by the distances of NUMA nodes, unless it has much to do already.
// Batches take turns. What is in flight goes first: that may be 6 MiB and one
// slice on each connection.
//
// A connection that fails is replaced. Its slices are repeated over others,
// but only after both ends have destroyed it: what it carried could otherwise
// arrive late, and overwrite newer data. A request fails if nothing could carry
// it in Config.RetryTimeout. The same happens when a device is removed; when it
// is back, the engine registers all memory with it and uses it again.
//
// If the peer's program restarts, the peer's regions are others, even if they
// have the same names and addresses. Requests to the old ones fail with
// [ErrSessionEnded] and never reach the new ones; Peer.Region returns those.
//
// # Notifications
//
// [Batch.Notify] and [Peer.Send] send short messages, which [Peer.Receive]
// returns exactly once and in order. A batch's message comes after its data are
// in place: if one connection has carried all of a batch's writes, and no other
// message is on the way, the message follows on that connection. Otherwise it
// is sent when the peer's device has the data. A peer that does not receive
// makes the other end wait, not its own memory grow; see Config.Mailbox.
//
// # Security
//
//   - A stranger reaches only the control connection, whose protection domain
//     has no memory of the program. ListenConfig.Authenticate decides which
//     one becomes a peer, and DialConfig.Verify whether the dialer goes on.
//   - A peer is told the regions that RegionConfig.Allow permits, and may use
//     them until Region.Close, or the end of its session. The device enforces
//     RegionConfig.Access for all peers.
//   - All peers of an engine are one trust group: a peer could reach regions
//     that it is not told of by guessing their keys. Peers that must not be
//     able to do that belong to another Engine, which has other protection
//     domains.
//   - Nothing is encrypted, and a program that can send packets in a peer's
//     name can do what the peer can.
//
// # Counters
//
// [Peer.Stats] counts what is moved. If Config.Publish is set, other processes
// of the same user get the counts by [Engines], as verbena stat -t does.
//
// # Errors
//
// A call that cannot succeed fails with an *ibverbs.ArgumentError before
// anything is sent. A failed request gives a [*RequestError], and a wait that
// ends early a [*PendingError].
package transfer
