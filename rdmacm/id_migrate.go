package rdmacm

import (
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Migrate makes the id's events come on another channel; see
// rdma_migrate_id(3). Those that nobody has read move with it.
func (id *ID) Migrate(to *EventChannel) error {
	if err := to.self().Use(); err != nil {
		return err
	}
	defer to.object.Done()
	return id.call(func() error {
		from := id.channel.Load()
		if from == to {
			return nil
		}
		// Known there before the first event can come. C waits until those that
		// were read here are acknowledged, as they are at once.
		to.put(id)
		if err := librdmacm.MigrateId(id.raw, to.raw); err != nil {
			to.remove(id)
			return cerr.Wrap(id.object.Name(), err)
		}
		id.object.AddParent(&to.object)
		id.channel.Store(to)
		from.remove(id)
		id.object.RemoveParent(&from.object)
		return nil
	})
}

func (ch *EventChannel) put(id *ID) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.ids[id.raw] = id
}

func (ch *EventChannel) remove(id *ID) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.ids, id.raw)
}
