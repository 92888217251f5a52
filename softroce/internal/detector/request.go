// SPDX-License-Identifier: Apache-2.0

package detector

// Access says what a request does with the memory of its segments.
type Access uint8

// Kinds of access.
const (
	Nothing   Access = iota
	Sends            // reads the memory for a message, a datagram or an RDMA write
	Receives         // writes a received message to the memory
	GetsReply        // writes the result of an RDMA read or an atomic operation to the memory
)

// QueueKind is the kind of a queue of work requests.
type QueueKind uint8

// Kinds of queues.
const (
	SendQueue    QueueKind = iota // the completion of a request is also that of the earlier ones
	ReceiveQueue                  // requests complete in their order
	SharedQueue                   // requests complete in any order
)

// RemoteAccess says what a request does with the memory of the peer.
type RemoteAccess uint8

// Kinds of access to the memory of a peer.
const (
	RemoteRead RemoteAccess = iota
	RemoteWrite
	RemoteAtomic
)

// Request is a work request that is being posted.
type Request struct {
	Access  Access
	Memory  [][]byte
	Regions []*Region // regions of the memory
	Remote  bool      // whether the request accesses memory of the peer by a key

	// Ticket is set by Queue.Post. It is the number of the request for
	// Completed. It is not 0.
	Ticket uint32
}
