// SPDX-License-Identifier: Apache-2.0

// Package tag lets the device choose the receive of each message by a tag in
// the message, as MPI programs do. Data then arrives where it belongs, in
// whatever order messages come.
//
// A shared receive queue of type [ibverbs.SRQTypeTagMatching] has a list of
// receives with tags. Add operations that change the list, such as adding a
// [Recv], to a [Batch], and [Post] it:
//
//	batch, err := tag.NewBatch(16, 1)
//	...
//	err = batch.Add(tag.Op{}, tag.Recv{Tag: 7, Mask: 0xFF, ID: 1}, mr.Sub(0, 4096))
//	...
//	_, err = tag.Post(srq, batch)
//
// The sender puts a [Header] with the tag before each message. A message that
// matches no tag takes a receive of [ibverbs.SRQ.PostRecv]; parse its header
// with [ParseHeader]. Completions arrive on the queue of
// [ibverbs.SRQConfig.CQ]. If that was created with [ibverbs.WCWithTMInfo],
// [ibverbs.WC.TMInfo] returns the tag.
//
// A sender can also keep large data back, and send a [RendezvousHeader] that
// says where it is: the receiver's device reads the data once a receive
// matches.
//
// Few devices match tags; [ibverbs.DeviceAttr.TagMatching] says how many
// receives and operations the list may have. On others, creating the queue
// fails with an error matching errors.ErrUnsupported.
package tag
