// SPDX-License-Identifier: Apache-2.0

// Package fabric examines an InfiniBand fabric: its nodes and links, and the
// configuration and the counters of its ports. It does what ibnetdiscover,
// smpquery and perfquery do, for programs that would otherwise run these and
// parse what they print.
//
// Open opens a port of this machine. Its Client sends management datagrams to
// the nodes:
//
//	client, err := fabric.Open(fabric.Config{})
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	topology, err := client.Discover(ctx)
//
// [Client.Discover] finds all nodes. [Client.NodeInfo],
// [Client.NodeDescription], [Client.PortInfo] and [Client.SwitchInfo] ask one,
// at an [Address]: a [LID], which the subnet manager must have assigned, or a
// [Route], which needs nothing but the links. [Client.Counters] and
// [Client.ExtendedCounters] read the counters of a port, and
// [Client.ResetCounters] and [Client.ResetExtendedCounters] reset them; these
// need a LID.
//
// # Requests
//
// Each request is sent again, Config.Retries times, if nothing answers it
// within Config.Timeout. It is sent again, too, if the node answers that it is
// busy, but only after Config.Timeout. The context ends the wait at any time.
// At most Config.InFlight requests are in flight, since the datagrams have no
// flow control: ports drop what comes too fast. An answer counts only if it
// belongs to the request. The package does not verify what an answer says about
// a node.
//
// # Errors
//
// The error of a request is an [*Error]. It matches [ErrNoAnswer] if nothing
// answered, a [Status] if the node refused the request, the context's error, or
// os.ErrClosed. A node that does not answer does not end [Client.Discover]: the
// Problems of the [Topology] list the requests that failed.
//
// # Requirements
//
// The package opens the library libibumad.so.3 at run time (Debian's package
// libibumad3), which talks to the kernel's module ib_umad. It needs access to
// /dev/infiniband/umad*, which only root has on most machines. Without the
// library, and in programs that cannot call C, Open returns an error that
// matches errors.ErrUnsupported. VERBENA_DEVICE has no effect: the device in
// user space is an Ethernet device.
//
// ibsim simulates fabrics on any machine: in a program that ibsim-run starts,
// Open opens a port of such a fabric.
package fabric
