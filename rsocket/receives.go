// SPDX-License-Identifier: Apache-2.0

package rsocket

import "github.com/verbena-go/verbena/ibverbs"

// receives keeps receives posted to a queue pair or a shared receive queue.
// They have no memory: the peer writes its data, and a receive only takes the
// immediate data that comes with the write.
type receives struct {
	batch *ibverbs.RecvBatch
	queue interface {
		PostRecv(*ibverbs.RecvBatch) (int, error)
	}
	owed int // number to post; below zero, so many more are posted than are wanted
}

// recvBatch is the number of receives posted at a time.
const recvBatch = 64

// receiveID is the ID of all receives. No request has it.
const receiveID = 1 << 63

// init prepares for posting. The caller sets the queue.
func (r *receives) init() (err error) {
	r.batch, err = ibverbs.NewRecvBatch(recvBatch, 1)
	return err
}

// refill posts the receives that are owed. After an error, the next call tries
// again.
func (r *receives) refill() error {
	for r.owed > 0 {
		r.batch.Reset()
		for range min(r.owed, recvBatch) {
			if err := r.batch.Recv(receiveID); err != nil {
				return err
			}
		}
		n, err := r.queue.PostRecv(r.batch)
		r.owed -= n
		if err != nil {
			return err
		}
	}
	return nil
}
