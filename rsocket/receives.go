// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"encoding/binary"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// receives keeps a number of receives posted to a queue pair or a shared
// receive queue. The peer writes its data by RDMA, and a receive only takes the
// word of a message. Usually the word is immediate data, and the receives have
// no memory. On iWARP, the word is a message of its own, and each receive has
// memory for one.
type receives struct {
	queue interface {
		PostRecv(*ibverbs.RecvBatch) (int, error)
	}
	missing int         // number of receives that are missing; if negative, so many posted receives will not be replaced
	words   *ibverbs.MR // on iWARP, the places of words, one for each receive; otherwise nil
	bytes   []byte      // memory of words, which stays valid when the region is closed
	free    []uint64    // places that belong to no receive
}

// recvBatch is the number of receives that one call posts.
const recvBatch = 64

// recvBatches has *ibverbs.RecvBatch for recvBatch receives that no goroutine
// uses. A connection posts most of its receives when it begins.
var recvBatches sync.Pool

func takeRecvBatch() (*ibverbs.RecvBatch, error) {
	if b, ok := recvBatches.Get().(*ibverbs.RecvBatch); ok {
		return b, nil
	}
	return ibverbs.NewRecvBatch(recvBatch, 1)
}

// receiveID is set in the ID of all receives, and in that of no send request.
// On iWARP, the lower bits are the place of the word.
const receiveID = 1 << 63

// wordLen is the number of bytes of a word.
const wordLen = 4

// isReceive reports whether a receive has completed.
func isReceive(wc *ibverbs.WC) bool { return wc.ID()&receiveID != 0 }

// init sets the places of words on iWARP; otherwise, words is nil. Their memory
// must stay valid after words is closed, as the goroutine that holds the pump
// may still look at it. After init, the caller must set queue.
func (r *receives) init(words *ibverbs.MR) {
	if words != nil {
		r.words, r.bytes = words, words.Bytes()
		for i := range words.Len() / wordLen {
			r.free = append(r.free, uint64(i))
		}
	}
}

// place returns the memory of a word.
func (r *receives) place(i uint64) ibverbs.Segment { return r.words.Sub(int(i)*wordLen, wordLen) }

// refill posts the missing receives. After an error, the next call of refill
// tries again.
func (r *receives) refill() error {
	if r.missing <= 0 {
		return nil
	}
	batch, err := takeRecvBatch()
	if err != nil {
		return err
	}
	defer recvBatches.Put(batch)
	for r.missing > 0 {
		batch.Reset()
		count := min(r.missing, recvBatch)
		left := len(r.free) - count // of the free places
		for k := range count {
			var err error
			if r.words == nil {
				err = batch.Recv(receiveID)
			} else {
				i := r.free[left+k]
				err = batch.Recv(receiveID|i, r.place(i))
			}
			if err != nil {
				return err
			}
		}
		n, err := r.queue.PostRecv(batch)
		r.missing -= n
		if r.words != nil {
			r.free = append(r.free[:left], r.free[left+n:]...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// completed records that a receive has completed, so that refill posts another
// one, which may use the same memory.
func (r *receives) completed(wc *ibverbs.WC) {
	r.missing++
	if r.words != nil {
		r.free = append(r.free, wc.ID()&^receiveID)
	}
}

// message is what a completed receive has received.
type message struct {
	word protocol.Word
	ok   bool // whether there is a word
}

// message returns what a receive has received, before completed is called for
// it.
func (r *receives) message(wc *ibverbs.WC) message {
	if wc.Status() != ibverbs.WCSuccess || !isReceive(wc) {
		return message{}
	}
	if word, ok := wc.Imm(); ok {
		return message{protocol.Word(word), true}
	}
	if r.words == nil || wc.ByteLen() != wordLen {
		return message{}
	}
	place := (wc.ID() &^ receiveID) * wordLen
	return message{protocol.Word(binary.NativeEndian.Uint32(r.bytes[place:])), true}
}
