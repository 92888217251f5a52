package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// FirstRequest returns what C is given to post a batch that is full.
func FirstRequest(b *SendBatch) *libibverbs.SendWr { return &b.arena.wrs[0] }

// FirstReceive returns what C is given to post a batch.
func FirstReceive(b *RecvBatch) *libibverbs.RecvWr { return &b.arena.wrs[0] }

// RawChannel returns the C object of a channel.
func RawChannel(ch *CompChannel) *libibverbs.CompChannel { return ch.raw }
