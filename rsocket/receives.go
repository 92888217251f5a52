// SPDX-License-Identifier: Apache-2.0

package rsocket

import "github.com/verbena-go/verbena/ibverbs"

// receives keeps a number of receives posted to a queue pair or a shared
// receive queue. The receives have no memory: the peer writes its data by RDMA,
// and a receive only takes the immediate data.
type receives struct {
	batch *ibverbs.RecvBatch
	queue interface {
		PostRecv(*ibverbs.RecvBatch) (int, error)
	}
	missing int // number of receives that are missing; if negative, so many posted receives will not be replaced
}

// recvBatch is the number of receives that one call posts.
const recvBatch = 64

// receiveID is the ID of all receives. No send request has this ID.
const receiveID = 1 << 63

// init creates the batch. After it, the caller must set queue.
func (r *receives) init() (err error) {
	r.batch, err = ibverbs.NewRecvBatch(recvBatch, 1)
	return err
}

// refill posts the missing receives. After an error, the next call of refill
// tries again.
func (r *receives) refill() error {
	for r.missing > 0 {
		r.batch.Reset()
		for range min(r.missing, recvBatch) {
			if err := r.batch.Recv(receiveID); err != nil {
				return err
			}
		}
		n, err := r.queue.PostRecv(r.batch)
		r.missing -= n
		if err != nil {
			return err
		}
	}
	return nil
}
