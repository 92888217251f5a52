package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// BindMW adds a bind of a memory window of type 2: once it has completed, peers
// may use the memory as the binding says, by the window's new key, which
// [MW.Remote] has; see ibv_post_send(3).
func (b *SendBatch) BindMW(id uint64, mw *MW, binding Binding, flags SendFlags) error {
	switch {
	case b == nil || b.arena == nil:
		return noBatch(opPostSend, libibverbs.IBV_WR_BIND_MW.String())
	case b.arena.n == len(b.arena.wrs):
		return ErrBatchFull // before the window takes its next key
	}
	request, err := mw.BindWR(binding)
	if err != nil {
		return err
	}
	wr, err := b.add(libibverbs.IBV_WR_BIND_MW, 0, id, flags&^SendInline, unlimited, nil)
	if err != nil {
		return err
	}
	*wr.BindMw() = request
	b.look(b.arena.n-1, mw.self(), binding.Memory.mr.self())
	return nil
}

// LocalInv adds a request that makes a key of this side's invalid: that of a
// memory window; see ibv_post_send(3).
func (b *SendBatch) LocalInv(id uint64, rkey uint32, flags SendFlags) error {
	_, err := b.add(libibverbs.IBV_WR_LOCAL_INV, libibverbs.Be32(rkey), id, flags, unlimited, nil)
	return err
}
